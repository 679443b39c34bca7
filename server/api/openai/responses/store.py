"""Answers that are kept for later requests: in memory, the least used go first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec
from numaserve.server.api.openai.responses.entries import Entry


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
        self._max_bytes = self._left = max_bytes
        self._kept: OrderedDict[tuple[bytes, str], Kept] = OrderedDict()

    def put(self, owner: bytes, response_id: str, kept: Kept) -> bool:
        """Keep a response; False for one that is larger than the whole store, which is not kept."""
        size = _bytes_of(kept)
        if size > self._max_bytes:
            return False
        self._kept[owner, response_id] = kept
        self._left -= size
        while self._left < 0:
            _, oldest = self._kept.popitem(last=False)
            self._left += _bytes_of(oldest)
        return True

    def get(self, owner: bytes, response_id: str) -> Kept | None:
        """The response, which is then the last one to go."""
        kept = self._kept.get((owner, response_id))
        if kept is not None:
            self._kept.move_to_end((owner, response_id))
        return kept

    def delete(self, owner: bytes, response_id: str) -> bool:
        """Forget the response; False where there is none."""
        kept = self._kept.pop((owner, response_id), None)
        self._left += _bytes_of(kept or ())
        return kept is not None


def _bytes_of(kept: Iterable[bytes]) -> int:
    return sum(map(len, kept))
