"""A model with stages on two hosts of a Ray cluster, which are nodes on this machine. Runs in Ray's environment."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import ray
from numaserve.server.client.unix_session import open_session
from ray.cluster_utils import Cluster

STORE_BYTES = 80 * 2**20
PATIENCE_S = 120.0
STREAMS, TOKENS = 4, 200
OPTIONS = ["--tp", "1", "--threads-per-worker", "1", "--kv-cache-gib", "0.3", "--context-length", "1024"]


def main() -> int:
    """Run the check; the exit status is 1 if it fails."""
    folder, python = Path(sys.argv[1]), sys.argv[2]
    command = ["env", f"PYTHONPATH={os.environ['SERVER_PYTHONPATH']}", python, "-m", "numaserve.server.cli.main"]
    nodes, socket = _nodes(folder / "stage-nodes"), folder / "s.sock"
    with _running([*command, "serve", "demo", *OPTIONS, "--uds", str(socket)]) as server:
        expected = asyncio.run(_answers(socket, server))
    head = {"num_cpus": 1, "resources": {"numa_node": 1}, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head | {"object_store_memory": STORE_BYTES})
    try:
        cluster.add_node(num_cpus=1, resources={"numa_node": 1}, object_store_memory=STORE_BYTES)
        stages = ["--hosts", "2", "--address", cluster.address, "--nodes-folder", str(nodes)]
        stages += ["--command", json.dumps(command), "--", *OPTIONS, "--uds", str(socket)]
        with _running([sys.executable, "-m", "numaserve.ray.stages", "demo", *stages]) as server:
            assert asyncio.run(_answers(socket, server)) == expected
            found = asyncio.run(_answers(socket, server, kill_agent=True))
            assert found == expected, "other answers after the death of the agent"
        deadline = time.monotonic() + PATIENCE_S
        while _agents():
            assert time.monotonic() < deadline, "an agent is left over"
            time.sleep(0.2)
    finally:
        ray.shutdown()
        cluster.shutdown()
    said = f"{2 * STREAMS} streams have the bits of one host, half of them after the agent's death"
    print(f"| stages | {said} |", flush=True)
    return 0


def _nodes(folder: Path) -> Path:
    """Make two nodes, of a core each where there are two."""
    cores = sorted(os.sched_getaffinity(0))
    for node in range(2):
        (folder / f"node{node}").mkdir(parents=True)
        (folder / f"node{node}" / "cpulist").write_text(f"{cores[node % len(cores)]}\n")
    return folder


@contextlib.contextmanager
def _running(command: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command)
    try:
        yield process
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()


def _agents() -> list[psutil.Process]:
    """The agents on this machine, without the processes that start them."""
    found = []
    for each in psutil.process_iter(["cmdline"]):
        words = each.info["cmdline"] or []
        if "--front-ends" in words and Path(words[0]).name != "env":
            found.append(each)
    return found


async def _answers(
    socket: Path, server: subprocess.Popen[bytes], *, kill_agent: bool = False
) -> list[list[dict[str, Any]]]:
    """The tokens of all streams with their log-probabilities. The agent is killed when all have begun."""
    async with open_session(socket) as session:
        deadline = time.monotonic() + PATIENCE_S
        while not await _is_ready(session):
            assert server.poll() is None, "the server ended"
            assert time.monotonic() < deadline, "the server is not ready"
            await asyncio.sleep(0.2)
        begun = asyncio.Barrier(STREAMS + 1)

        async def read(index: int) -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = []
            async for tokens in _stream(session, index):
                if not found:
                    await begun.wait()
                found += tokens
            return found

        streams = [asyncio.create_task(read(index)) for index in range(STREAMS)]
        await begun.wait()
        if kill_agent:
            (agent,) = _agents()
            agent.send_signal(signal.SIGKILL)
        return list(await asyncio.gather(*streams))


async def _stream(session: Any, index: int) -> AsyncIterator[list[dict[str, Any]]]:
    body = {
        "messages": [{"role": "user", "content": f"Tell me {index} things about Paris."}],
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "temperature": index % 2,
        "seed": index,
        "logprobs": True,
        "stream": True,
    }
    async with session.post("http://localhost/v1/chat/completions", json=body) as answer:
        assert answer.status == 200, await answer.text()
        async for line in answer.content:
            if line.startswith(b"data: {"):
                event = json.loads(line.removeprefix(b"data: "))
                assert "error" not in event, event
                for choice in event["choices"]:
                    if choice.get("logprobs"):
                        yield choice["logprobs"]["content"]


async def _is_ready(session: Any) -> bool:
    try:
        async with session.get("http://localhost/readyz") as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(main())
