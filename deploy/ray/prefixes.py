"""The map of prompt prefixes to the replicas that should have them cached, judged by the prompts sent to each."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from typing import Generic, TypeVar

BLOCK = 256  # bytes of a prompt per lookup: about two pages of the KV cache
_DIGEST = 12  # bytes

ReplicaT = TypeVar("ReplicaT", bound=Hashable)


def prompt_of(body: object) -> bytes:
    """Return the bytes of a decoded request that form the beginning of the prompt; empty without a prompt.

    Two prompts share a prefix where these bytes do, so neither the template nor the tokenizer is needed.
    """
    if not isinstance(body, dict):
        return b""
    known = [body.get(field) for field in ("model", "tools", "instructions", "system") if body.get(field)]
    for field in ("messages", "prompt", "input"):
        said = body.get(field)
        if said:
            items = said if isinstance(said, list) else [said]
            # Item by item, so that the next turn of a conversation begins with the bytes of this turn.
            return b"".join(_bytes(item) for item in [*known, *items])
    return b""


def blocks_of(prompt: bytes) -> tuple[bytes, ...]:
    """Return a digest for each whole block, of the block and everything before it."""
    running = hashlib.blake2b(digest_size=_DIGEST)
    digests = []
    for end in range(BLOCK, len(prompt) + 1, BLOCK):
        running.update(prompt[end - BLOCK : end])
        digests.append(running.copy().digest())
    return tuple(digests)


class PrefixMap(Generic[ReplicaT]):
    """The map of the `capacity` most recently sent blocks to the replicas that received them."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._replicas: OrderedDict[bytes, set[ReplicaT]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._replicas)

    def learn(self, blocks: Sequence[bytes], replica: ReplicaT) -> None:
        """Record that a prompt with these blocks was sent to `replica`."""
        # The last block first, so that the beginning of a prompt is evicted last.
        for block in reversed(blocks):
            self._replicas.setdefault(block, set()).add(replica)
            self._replicas.move_to_end(block)
        while len(self._replicas) > self._capacity:
            self._replicas.popitem(last=False)

    def matched(self, blocks: Sequence[bytes], replicas: Iterable[ReplicaT]) -> dict[ReplicaT, int]:
        """Return, for each of `replicas`, the number of leading blocks that it was sent."""
        counts = dict.fromkeys(replicas, 0)
        left = set(counts)
        for block in blocks:
            left &= self._replicas.get(block, set())
            if not left:
                break
            for replica in left:
                counts[replica] += 1
        return counts

    def forget(self, kept: Iterable[ReplicaT]) -> None:
        """Drop all replicas except `kept`."""
        living = set(kept)
        for block in list(self._replicas):
            self._replicas[block] &= living
            if not self._replicas[block]:
                del self._replicas[block]


def ranked(matched: dict[ReplicaT, int], loads: dict[ReplicaT, int], *, slack: int) -> list[list[ReplicaT]]:
    """Return the replicas in the order in which to try them, with equal replicas grouped.

    Replicas that were sent most of the prompt come first. A replica with over `slack` more requests than the least
    loaded one is excluded: waiting there would take longer than computing the prompt elsewhere. The other replicas
    follow, those with the fewest requests first.
    """
    least = min(loads.values(), default=0)
    longest = max(matched.values(), default=0)
    holders = [each for each in matched if longest and matched[each] == longest and loads[each] - least <= slack]
    rest: dict[int, list[ReplicaT]] = {}
    for replica in matched:
        if replica not in holders:
            rest.setdefault(loads[replica], []).append(replica)
    return [each for each in (holders, *(rest[load] for load in sorted(rest))) if each]


def _bytes(item: object) -> bytes:
    if isinstance(item, str):
        return item.encode(errors="surrogatepass")
    return json.dumps(item, ensure_ascii=False, sort_keys=True).encode(errors="surrogatepass") + b"\n"
