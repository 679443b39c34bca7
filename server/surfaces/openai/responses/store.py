"""Stored responses, in memory. Eviction removes the least recently used response of the key that holds the most
bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from numaserve.server.common.fair_lru import FairLru
from numaserve.server.surfaces.openai.responses.entries import Entry


class Kept(NamedTuple):
    """A response, the items that it was generated from, and its own items, each as JSON: most readers need one of the
    three.

    MessagePack was rejected: it cannot represent integers of any length.
    """

    response: bytes
    given: bytes
    said: bytes

    @classmethod
    def of(cls, response: object, given: Sequence[Entry], said: Sequence[Entry]) -> Kept:
        """Return a stored response with its items."""
        return cls(*map(msgspec.json.encode, (response, [entry.stored() for entry in given], said)))


def entries_in(data: bytes) -> list[Entry]:
    """Return the stored items."""
    return msgspec.json.decode(data, type=list[Entry])


class ResponseStore:
    """Stores responses by owner within `max_bytes`; no other owner can read them. They are lost with the process."""

    def __init__(self, max_bytes: int) -> None:
        self._kept: FairLru[tuple[bytes, str], Kept] = FairLru(max_bytes)

    def put(self, owner: bytes, response_id: str, kept: Kept) -> bool:
        """Store a response; return False if it is not stored, because it is larger than the space that may be freed for
        it."""
        return self._kept.put(owner, (owner, response_id), kept, sum(map(len, kept)))

    def get(self, owner: bytes, response_id: str) -> Kept | None:
        """Return the response and mark it as the owner's most recently used."""
        return self._kept.get((owner, response_id))

    def delete(self, owner: bytes, response_id: str) -> bool:
        """Delete the response; return False if there is none."""
        return self._kept.delete((owner, response_id))
