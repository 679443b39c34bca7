"""``python -m tests.demo_hosts``: one model on two hosts, while their link goes down and an agent is killed.

Two network namespaces stand for the hosts, with a pair of virtual interfaces between them. The server and the first
stage are in one, the agent and the second stage in the other. Twenty streams run at a time. When each has begun, the
link goes down for ten seconds; later the agent is killed and started again. Tokens and log-probabilities must be those
of a server on one host. The exit status is 1 where something differs. Root makes namespaces.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from numaserve.server.common.key_files import write_key_file
from numaserve.workers.interface.errors import OperatorError

from tests.support.demo import demo_model

_STREAMS, _TOKENS = 20, 192
_DOWN_S = 10.0
_PATIENCE_S = 300.0
_PORT = 7000
_FRONT, _BACK = "10.77.0.1", "10.77.0.2"
_DEVICES = "host-a", "host-b"
_OPTIONS = ("--tp", "1", "--threads-per-worker", "1", "--weights-cache-gib", "0", "--kv-cache-gib", "0.5")
_COMMAND = (sys.executable, "-m", "numaserve")


@dataclass
class Stream:
    """An answer as it arrives."""

    pieces: list[Any] = field(default_factory=list)  # tokens and log-probabilities
    longest_pause_s: float = 0.0


def main() -> int:
    """Print the line of the demonstration, and return the exit status."""
    if os.geteuid() != 0:
        raise OperatorError("namespaces need root: run the demonstration as root")
    model = str(demo_model())
    with tempfile.TemporaryDirectory(prefix="nh-") as made:
        folder = Path(made)
        with running_server((), folder, [model, *_OPTIONS]) as socket:
            expected = asyncio.run(all_streams(socket))
        with ExitStack() as stack:
            front, back = stack.enter_context(two_hosts())
            agent = Agent(back, folder)
            stack.callback(agent.kill)
            hosts = agent.hosts_file()
            socket = stack.enter_context(running_server(front, folder, [model, *_OPTIONS, "--hosts", str(hosts)]))
            found = asyncio.run(all_streams(socket, [lambda: cut_link(back), agent.replace]))
    complete = sum(len(stream.pieces) == len(one.pieces) for stream, one in zip(found, expected, strict=True))
    different = sum(stream.pieces != one.pieces for stream, one in zip(found, expected, strict=True))
    pause = max(stream.longest_pause_s for stream in found)
    print(f"{complete} complete, {different} different, longest pause {pause:.1f} s")
    return 0 if complete == _STREAMS and not different else 1


@contextmanager
def two_hosts() -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Make two namespaces with a link, and yield the beginning of a command in each."""
    names = [f"numaserve-{os.getpid()}-{side}" for side in "ab"]
    inside = [("ip", "netns", "exec", name) for name in names]
    with ExitStack() as stack:
        for name in names:
            _run("ip", "netns", "add", name)
            stack.callback(_run, "ip", "netns", "delete", name)
        first, second = _DEVICES
        _run("ip", "link", "add", first, "netns", names[0], "type", "veth", "peer", "name", second, "netns", names[1])
        for enter, device, address in zip(inside, _DEVICES, (_FRONT, _BACK), strict=True):
            _run(*enter, "ip", "address", "add", f"{address}/24", "dev", device)
            for each in (device, "lo"):
                _run(*enter, "ip", "link", "set", each, "up")
        yield inside[0], inside[1]


def cut_link(back: tuple[str, ...]) -> None:
    """Take the link down for a while."""
    print(f"the link is down for {_DOWN_S:g} s")
    _run(*back, "ip", "link", "set", _DEVICES[1], "down")
    time.sleep(_DOWN_S)
    _run(*back, "ip", "link", "set", _DEVICES[1], "up")


class Agent:
    """The agent in a namespace, and its keys."""

    def __init__(self, enter: tuple[str, ...], folder: Path) -> None:
        self._folder = folder
        self._keys = write_key_file(folder / "agent.key")
        (folder / "front-ends").write_text(write_key_file(folder / "front-end.key").public)
        options = ["--key-file", str(folder / "agent.key"), "--front-ends", str(folder / "front-ends")]
        self._command = [*enter, *_COMMAND, "agent", "--listen", f"{_BACK}:{_PORT}", *options]
        self._process = self._start()

    def hosts_file(self) -> Path:
        """Write the hosts file, and return it."""
        file = self._folder / "hosts.yaml"
        file.write_text(
            f"key-file: {self._folder / 'front-end.key'}\nstages:\n- here\n"
            f"- agent: {_BACK}:{_PORT}\n  public-key: {self._keys.public}\n"
        )
        return file

    def replace(self) -> None:
        """Kill the process, and start it again."""
        print("the agent is killed")
        self.kill()
        self._process = self._start()

    def kill(self) -> None:
        """Kill the process, whose workers end with it."""
        self._process.kill()
        self._process.communicate()

    def _start(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=self._log(), text=True)
        assert process.stdout is not None
        process.stdout.readline()  # it listens
        return process

    def _log(self) -> Any:
        return (self._folder / "agent.log").open("a")


@contextmanager
def running_server(enter: tuple[str, ...], folder: Path, options: list[str]) -> Iterator[Path]:
    """Run a server, and yield its Unix socket, which namespaces share."""
    socket = folder / "server.sock"
    with (folder / "server.log").open("a") as log:
        process = subprocess.Popen(
            [*enter, *_COMMAND, "serve", *options, "--uds", str(socket), "--served-model-name", "demo"],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    assert process.stdout is not None
    try:
        if not process.stdout.readline():
            raise OperatorError(f"the server did not start: {(folder / 'server.log').read_text()[-2000:]}")
        yield socket
    finally:
        process.terminate()
        process.communicate(timeout=60)


async def all_streams(socket: Path, faults: list[Callable[[], None]] | None = None) -> list[Stream]:
    """Return all answers. A fault comes when each stream has some tokens, and the next one when each has some more."""
    streams = [Stream() for _ in range(_STREAMS)]
    transport = httpx.AsyncHTTPTransport(uds=str(socket))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=_PATIENCE_S) as client:
        asked = [asyncio.ensure_future(_stream(client, index, each)) for index, each in enumerate(streams)]
        for fault in faults or []:
            before = [len(each.pieces) for each in streams]
            while any(len(each.pieces) < least + 16 for each, least in zip(streams, before, strict=True)):
                await asyncio.sleep(0.05)
            await asyncio.to_thread(fault)
        await asyncio.gather(*asked)
    return streams


async def _stream(client: httpx.AsyncClient, index: int, into: Stream) -> None:
    body = {"model": "demo", "prompt": f"Story {index}: once upon a time", "max_tokens": _TOKENS, "stream": True}
    more = {"temperature": index % 2, "seed": index, "ignore_eos": True, "logprobs": 2}
    async with client.stream("POST", "/v1/completions", json=body | more) as answer:
        last = time.monotonic()
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            now = time.monotonic()
            if into.pieces:
                into.longest_pause_s = max(into.longest_pause_s, now - last)
            last = now
            for choice in json.loads(line.removeprefix("data: ")).get("choices", []):
                found = choice["logprobs"] or {}
                into.pieces += zip(found.get("tokens", []), found.get("token_logprobs", []), strict=True)


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


if __name__ == "__main__":
    sys.exit(main())
