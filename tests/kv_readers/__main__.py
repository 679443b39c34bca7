"""``python -m tests.kv_readers``: two real servers are asked, evict, flush and lose a worker, and readers look on.

Readers are Dynamo's selection core and the classes of vLLM and SGLang. Each has to know exactly what is cached, whether
it has listened from the start or comes late.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import httpx
from numaserve.workers.interface.protocol import PAGE_SIZE

from tests.clients.environments import python_with
from tests.kv_readers.image_events import check_images
from tests.kv_readers.readers import (
    Addresses,
    Classes,
    Dynamo,
    Reader,
    cached_blocks,
    prefix_tokens,
    prompt_of,
    until_right,
)
from tests.kv_readers.schemas import SCHEMAS
from tests.support.kv_reader import Prefix, Subscriber
from tests.support.real_server import RealServer

ENVIRONMENTS = Path(__file__).resolve().parents[2] / "build" / "kv-readers"
DYNAMO = {"ai-dynamo-runtime": "1.6.1"}
REQUESTS = 40


def main() -> int:
    """Have all readers look on; the first that stays wrong raises."""
    python = python_with(DYNAMO, ENVIRONMENTS / "dynamo")
    schemas = {f"{each.package} {each.version}": each.load(ENVIRONMENTS) for each in SCHEMAS}
    with tempfile.TemporaryDirectory(prefix="ns") as folder, ExitStack() as stack:
        addresses = [(f"ipc://{folder}/events-{number}", f"ipc://{folder}/again-{number}") for number in range(2)]
        servers = [stack.enter_context(_server(each)) for each in addresses]
        truth = [stack.enter_context(closing(Subscriber(*each))) for each in addresses]

        def readers(when: str) -> list[Reader]:
            dynamo = Dynamo(f"dynamo {DYNAMO['ai-dynamo-runtime']}, {when}", python, addresses)
            made: list[Reader] = [
                dynamo,
                *(Classes(f"{name}, {when}", schema, addresses) for name, schema in schemas.items()),
            ]
            for reader in made:
                stack.enter_context(closing(reader))
            return made

        scene = Scene(servers, truth, readers("from the start"))
        scene.ask(REQUESTS)
        scene.check("after evictions")
        httpx.post(f"{servers[0].url}/flush_cache").raise_for_status()
        scene.check("after a flush")
        scene.ask(REQUESTS)
        scene.kill_a_worker(servers[1])
        scene.check("after the death of a worker")
        scene.ask(REQUESTS)
        scene.readers += readers("late")
        scene.ask(8)  # a reader learns that it has missed something from the next message
        scene.check("with readers that came late")
        scene.check_choices()
    check_images(next(schema for name, schema in schemas.items() if name.startswith("vllm")), python)
    return 0


class Scene:
    """Servers, what they have cached, and who looks on."""

    def __init__(self, servers: Sequence[RealServer], truth: Sequence[Subscriber], readers: list[Reader]) -> None:
        self.readers = readers
        self._servers = servers
        self._truth = truth
        self._known: set[Prefix] = set()
        self._chance = random.Random(1)

    def ask(self, count: int) -> None:
        """Send requests, many of which begin alike, to one server and the other."""
        for _ in range(count):
            runs = [self._chance.randrange(9, 12) for _ in range(self._chance.randrange(1, 5))]
            prompt = [token for token in runs for _ in range(48)]
            answer = self._chance.choice(self._servers).complete(prompt, self._chance.randrange(1, 40))
            assert answer.status_code == 200, answer.text
            self._known.update(*self._cached())

    def check(self, when: str) -> None:
        """Wait until each reader knows what is cached. What a server does is told a little later, to all of them."""
        for reader in self.readers:
            self._until_right(reader, when)
        blocks = [len(each) for each in self._cached()]
        print(f"{when}: {blocks} blocks, {len(self._known)} ever; {len(self.readers)} readers agree", flush=True)

    def kill_a_worker(self, server: RealServer) -> None:
        """SIGKILL; returns when another one serves."""
        os.kill(server.worker_pids()[0], signal.SIGKILL)
        server.until(lambda: not self._cached()[self._servers.index(server)])
        server.until(server.is_ready)

    def check_choices(self) -> None:
        """What Dynamo says is cached is what the server that it chooses finds in its cache."""
        dynamo = next(reader for reader in self.readers if isinstance(reader, Dynamo))
        hits = 0
        for prefix in sorted(self._known, key=len, reverse=True)[:12]:
            self._until_right(dynamo, "before a choice")
            (told,) = dynamo.about([prompt_of(prefix)])
            blocks = [cached_blocks(prefix, each) for each in self._cached()]
            assert blocks[told["chosen"]] == max(blocks), f"{told} of {blocks}"
            usage = self._servers[told["chosen"]].complete([*prefix_tokens(prefix), 8], 1).json()["usage"]
            assert usage["prompt_tokens_details"]["cached_tokens"] == max(blocks) * PAGE_SIZE, usage
            hits += max(blocks)
            self._known.update(*self._cached())
        assert hits, "nothing was cached of any prompt"
        print(f"Dynamo chose the server with the longest prefix 12 times of 12; {hits} blocks were found there")

    def _until_right(self, reader: Reader, when: str) -> None:
        until_right(reader, self._cached, sorted(self._known), when)

    def _cached(self) -> list[set[Prefix]]:
        for each in self._truth:
            each.catch_up()
        return [each.index.prefixes() for each in self._truth]


def _server(addresses: Addresses) -> RealServer:
    events, replay = addresses
    options = ("--tp", "1", "--threads-per-worker", "1", "--kv-cache-gib", "0.03")  # little enough to evict
    return RealServer(*options, "--kv-events", events, "--kv-events-replay", replay)


if __name__ == "__main__":
    sys.exit(main())
