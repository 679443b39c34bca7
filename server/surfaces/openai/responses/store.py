"""Stored responses, in memory. Eviction removes the least recently used response of the key that holds most."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from numaserve.server.common.fair_lru import FairLru
from numaserve.server.surfaces.openai.responses.entries import Entry


class Kept(NamedTuple):
    """A response, and the items that it was made of and has, each as JSON: most who ask need one of the three.

    MessagePack has no numbers of any length.
    """

    response: bytes
    given: bytes
    said: bytes

    @classmethod
    def of(cls, response: object, given: Sequence[Entry], said: Sequence[Entry]) -> Kept:
        """A response with its items."""
        return cls(*map(msgspec.json.encode, (response, given, said)))


def entries_in(data: bytes) -> list[Entry]:
    """The items that were kept."""
    return msgspec.json.decode(data, type=list[Entry])


class ResponseStore:
    """Keeps responses under their owner's name within `max_bytes`; nobody else finds them. Lost with the process."""

    def __init__(self, max_bytes: int) -> None:
        self._kept: FairLru[tuple[bytes, str], Kept] = FairLru(max_bytes)

    def put(self, owner: bytes, response_id: str, kept: Kept) -> bool:
        """Keep a response; False for one that is not kept, since it is larger than what may go for it."""
        return self._kept.put(owner, (owner, response_id), kept, sum(map(len, kept)))

    def get(self, owner: bytes, response_id: str) -> Kept | None:
        """The response, which is then the owner's last one to go."""
        return self._kept.get((owner, response_id))

    def delete(self, owner: bytes, response_id: str) -> bool:
        """Forget the response; False where there is none."""
        return self._kept.delete((owner, response_id))
