"""Servers over a disk with faults, and what their answers have to be."""

import random
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
from numaserve.workers.interface.protocol import PAGE_SIZE

from tests.demo_kv_disk.faulty_disk import FaultyDisk, compiled
from tests.support.chat_model import write_model
from tests.support.living import await_ends
from tests.support.real_server import RealServer, completion

OLD, NEW = range(4), range(4, 8)  # numbers of prompts: the old ones are on disk at the start
PAGES, _TOKENS = 12, 8
_VOCABULARY = range(3, 250)
_OPTIONS = ("--tp", "2", "--kv-cache-gib", "0.125", "--context-length", "1024", "--max-running-requests", "4")
_IMPATIENCE_S = 0.5  # less than the deadline of a read
_OFF = "the disk tier is off until the next start: "


class Wrong(Exception):
    """Something that is not as it has to be with a fault."""


class Bench:
    """The model, its prompts with their answers, and a folder with the first of them."""

    def __init__(self, place: Path) -> None:
        self._place, self._library = place, compiled(place)
        self._model = write_model(place)
        rng = random.Random(0)
        self._prompts = [rng.choices(_VOCABULARY, k=PAGES * PAGE_SIZE + 9) for _ in (*OLD, *NEW)]
        self._expected: list[object] = []
        with RealServer(*_OPTIONS, "--no-prefix-cache", model=str(self._model)) as server:
            self._expected = [self._answer(server, number) for number in (*OLD, *NEW)]
        self._written: Path | None = None
        disk = self.disk("written")
        with self.serve(disk) as server:
            self.ask(server, OLD)
            server.until(lambda: num_pages(server) == len(OLD) * PAGES)
            end(server)
        self._written = disk.folder

    def disk(self, name: str) -> FaultyDisk:
        """Return a disk with the old prompts."""
        return FaultyDisk(self._place / name, self._library, self._written)

    @contextmanager
    def serve(self, disk: FaultyDisk, *, is_open: bool = True) -> Iterator[RealServer]:
        """Yield a server which uses a disk; where that can be opened, when it is."""
        with RealServer(
            *self.options(disk.folder), model=str(self._model), executed=True, environment=disk.environment
        ) as server:
            if is_open:
                server.until(lambda: "the disk tier has" in server.log.read_text())
            yield server

    def options(self, folder: Path) -> list[str]:
        """Return the options of a server that uses a folder."""
        return [*_OPTIONS, "--kv-disk-path", str(folder), "--kv-disk-gib", "0.05"]

    def refused(self, folder: Path) -> str:
        """Return the last line of a server that does not start."""
        command = [sys.executable, "-m", "numaserve.server.cli.main", "serve", str(self._model), "--port", "0"]
        ended = subprocess.run(
            [*command, *self.options(folder)], capture_output=True, text=True, timeout=60, check=False
        )
        require(ended.returncode != 0, "a second server has started")
        return ended.stderr.strip().splitlines()[-1]

    def ask(self, server: RealServer, numbers: Iterable[int]) -> None:
        """Ask prompts at the same time, each of which has to get its answer."""
        with ThreadPoolExecutor() as pool:
            for number, choices in zip(
                numbers, pool.map(lambda each: self._answer(server, each), numbers), strict=True
            ):
                require(choices == self._expected[number], f"the answer to prompt {number} differs")

    def give_up(self, server: RealServer, number: int) -> None:
        """Ask a prompt, and leave without an answer."""
        body = completion(self._prompts[number], _TOKENS)
        try:
            httpx.post(f"{server.url}/v1/completions", json=body, timeout=_IMPATIENCE_S)
        except httpx.ReadTimeout:
            return
        raise Wrong("an answer came at once, although the disk hangs")

    def _answer(self, server: RealServer, number: int) -> object:
        answer = server.complete(self._prompts[number], _TOKENS, logprobs=3)
        require(answer.status_code == 200, answer.text)
        return answer.json()["choices"]


def num_pages(server: RealServer) -> int:
    """The pages on disk."""
    return int(server.info()["kv_disk"].get("pages", {}).get("number", 0))


def is_off(server: RealServer) -> bool:
    """Whether the metrics say that the tier is off."""
    return bool(server.metrics()["kv_disk_state off"])


def off_reason(server: RealServer) -> str:
    """The reason why the tier is off, which the log has too. All pages have been given back."""
    require(is_off(server), "the tier is not off")
    reason = str(server.info()["kv_disk"]["off_reason"])
    require(_OFF + reason in server.log.read_text(), "the log does not say why the tier is off")
    server.until(lambda: not server.info()["pages_active"])
    return reason


def settle(server: RealServer) -> None:
    """Wait until no request runs or waits."""
    server.until(lambda: not any(server.info()[each] for each in ("running", "waiting")))


def end(server: RealServer) -> float:
    """End a server by SIGTERM, which must leave no process. Returns the seconds."""
    server.worker_pids()
    begin = time.monotonic()
    status = server.terminate()
    seconds = time.monotonic() - begin
    orphans = await_ends(server.orphans(), 10)
    require(status == 0 and not orphans, f"SIGTERM ended with {status}, and left {orphans}")
    return seconds


def require(condition: object, message: str) -> None:
    """Raise `Wrong` unless a condition is met."""
    if not condition:
        raise Wrong(message)
