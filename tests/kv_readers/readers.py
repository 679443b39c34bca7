"""What reads events, each with its own view of what servers have cached."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from numaserve.workers.interface.protocol import PAGE_SIZE

from tests.support.kv_reader import Prefix, Subscriber

PATIENCE_S = 60.0
SCRIPT = Path(__file__).with_name("dynamo_reader.py")
TAIL = [7] * PAGE_SIZE  # what follows a prefix in what readers are asked for; no server has ever seen it
Addresses = tuple[str, str]  # of a server's events and of their replay


class Reader(Protocol):
    """One that is told of some servers."""

    name: str

    def mistake(self, cached: Sequence[set[Prefix]], known: Sequence[Prefix]) -> str | None:
        """Where its view differs from what each server has `cached`; `known` is all that any has had."""

    def close(self) -> None:
        """Leave nothing."""


class Classes:
    """An engine's own classes in a subscriber of ours: what they decode is put together here."""

    def __init__(self, name: str, schema: ModuleType, servers: Sequence[Addresses]) -> None:
        self.name = name
        self._subscribers = [Subscriber(*addresses, schema=schema) for addresses in servers]

    def mistake(self, cached: Sequence[set[Prefix]], known: Sequence[Prefix]) -> str | None:
        """See `Reader`."""
        for number, (subscriber, prefixes) in enumerate(zip(self._subscribers, cached, strict=True)):
            subscriber.read()
            if (found := subscriber.index.prefixes()) != prefixes:
                return f"server {number}: {len(found - prefixes)} too many, {len(prefixes - found)} are missing"
        return None

    def prefixes(self) -> list[set[Prefix]]:
        """Return the cached prefixes of each server, as of the messages that were read."""
        return [subscriber.index.prefixes() for subscriber in self._subscribers]

    def close(self) -> None:
        """See `Reader`."""
        for subscriber in self._subscribers:
            subscriber.close()


class Dynamo:
    """Dynamo's selection core, in a process: the subscriber, the replay and the index are all its own."""

    def __init__(self, name: str, python: Path, servers: Sequence[Addresses]) -> None:
        self.name = name
        command = [str(python), str(SCRIPT), json.dumps(servers)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def mistake(self, cached: Sequence[set[Prefix]], known: Sequence[Prefix]) -> str | None:
        """See `Reader`. It tells how much of a prompt is cached: each that any server has had is asked for."""
        for prefix, told in zip(known, self.about([prompt_of(prefix) for prefix in known]), strict=True):
            expected = [cached_blocks(prefix, each) for each in cached]
            if told["blocks"] != expected:
                return f"a prompt of {len(prefix)} blocks: {expected} are cached, {told['blocks']} are known"
        return None

    def about(self, prompts: Sequence[Sequence[int]]) -> list[dict[str, Any]]:
        """For each prompt the `blocks` that each server has, and the server that is `chosen`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(prompts), file=self._process.stdin, flush=True)
        for line in self._process.stdout:  # its log goes there, too
            if line.startswith("["):
                return json.loads(line)
        raise AssertionError(f"the reader ended with {self._process.wait()}")

    def close(self) -> None:
        """See `Reader`."""
        self._process.terminate()
        self._process.communicate()


def until_right(
    reader: Reader, cached: Callable[[], Sequence[set[Prefix]]], known: Sequence[Prefix], when: str
) -> None:
    """Wait until a reader knows what is `cached`."""
    end = time.monotonic() + PATIENCE_S
    while (mistake := reader.mistake(cached(), known)) is not None:
        assert time.monotonic() < end, f"{reader.name}, {when}: {mistake}"
        time.sleep(0.1)


def prefix_tokens(prefix: Prefix) -> list[int]:
    """The tokens of all its blocks."""
    return [*chain.from_iterable(prefix)]


def prompt_of(prefix: Prefix) -> list[int]:
    """A prompt of which the prefix is all that may be cached."""
    return prefix_tokens(prefix) + TAIL


def cached_blocks(prefix: Prefix, cached: set[Prefix]) -> int:
    """How many blocks of the prefix are cached from its begin on."""
    return next((length for length in range(len(prefix), 0, -1) if prefix[:length] in cached), 0)
