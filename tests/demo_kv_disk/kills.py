"""``python -m tests.demo_kv_disk.kills``: kills of a server and of its workers, under load, with prefixes on disk.

Clients repeat prompts that share long prefixes. Each life of the server ends by SIGKILL after some seconds, some have
lost a worker before, and the next life uses the same folder. The KV cache in memory is smaller than the prompts. An
answer is right if its tokens and log-probabilities are those of a server that caches nothing. A request may fail only
by the death of its server. The exit status is 1 where one fails otherwise, or where an answer differs.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
from numaserve.workers.interface.protocol import PAGE_SIZE

from tests.support.chat_model import HYBRID, LLAMA, SLIDING, write_model
from tests.support.living import await_ends
from tests.support.real_server import RealServer

_FAMILIES = (LLAMA, HYBRID, SLIDING)
_FEED_FORWARD = 16_384  # so many that it takes longer to compute a page than to read it
_CLIENTS, _PROMPTS, _TOKENS = 6, 24, 8
_LIFE_S = (1.0, 4.0)
_VOCABULARY = range(3, 380)

Answer = object


class Load:
    """Clients of a server, one life after the other."""

    def __init__(self, prompts: list[list[int]], expected: list[Answer]) -> None:
        self._prompts = prompts
        self._expected = expected
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def run(self, server: RealServer, seconds: float, *, kills_worker: bool, seed: int) -> None:
        """Send requests until the server is killed."""
        is_over = threading.Event()
        with ThreadPoolExecutor(_CLIENTS) as pool:
            for number in range(_CLIENTS):
                pool.submit(self._client, server, is_over, random.Random(f"{seed} {number}"))
            if kills_worker:
                time.sleep(seconds / 2)
                os.kill(server.worker_pids()[0], signal.SIGKILL)
                self.counts["workers killed"] += 1
            time.sleep(seconds)
            server.worker_pids()  # so that it knows its family
            is_over.set()
            os.kill(server.process.pid, signal.SIGKILL)
            self.counts["servers killed"] += 1
        server.process.wait()
        await_ends(server.orphans())

    def _client(self, server: RealServer, is_over: threading.Event, rng: random.Random) -> None:
        while not is_over.is_set():
            number = rng.randrange(len(self._prompts))
            try:
                answer = server.complete(self._prompts[number], _TOKENS, logprobs=3)
            except httpx.HTTPError:
                self._count("died with their server" if is_over.is_set() else "failed")
                continue
            if answer.status_code != 200:
                self._count("died with their server" if is_over.is_set() else f"failed with {answer.status_code}")
                continue
            body = answer.json()
            cached = body["usage"]["prompt_tokens_details"]["cached_tokens"]
            self._count("equal" if body["choices"] == self._expected[number] else "DIFFERENT", cached)

    def _count(self, what: str, cached: int = 0) -> None:
        with self._lock:
            self.counts[what] += 1
            self.counts["cached tokens"] += cached


def main() -> int:
    """Print counts, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10, help="of the server, for each family")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    bad = 0
    for family in _FAMILIES:
        with tempfile.TemporaryDirectory(prefix="kills-") as made:
            counts = _of_family(Path(made), family, asked.kills, asked.seed)
        print(family, dict(sorted(counts.items())), flush=True)
        bad += sum(count for what, count in counts.items() if what.startswith(("failed", "DIFFERENT")))
    return 1 if bad else 0


def _of_family(folder: Path, family: str, kills: int, seed: int) -> Counter[str]:
    model, rng = write_model(folder, family=family, feed_forward=_FEED_FORWARD), random.Random(seed)
    prompts = _prompts(rng)
    options = ("--tp", "2", "--kv-cache-gib", "0.006", "--context-length", "1024", "--max-running-requests", "4")
    with RealServer(*options, "--no-prefix-cache", model=str(model)) as server:
        expected = [server.complete(prompt, _TOKENS, logprobs=3).json()["choices"] for prompt in prompts]
    load = Load(prompts, expected)
    for number in range(kills):
        with RealServer(*options, "--kv-disk-path", str(folder / "disk"), model=str(model)) as server:
            load.run(server, rng.uniform(*_LIFE_S), kills_worker=number % 3 == 1, seed=number)
    return load.counts


def _prompts(rng: random.Random) -> list[list[int]]:
    shared = [rng.choices(_VOCABULARY, k=10 * PAGE_SIZE) for _ in range(4)]
    return [rng.choice(shared) + rng.choices(_VOCABULARY, k=rng.randrange(5, 12 * PAGE_SIZE)) for _ in range(_PROMPTS)]


if __name__ == "__main__":
    sys.exit(main())
