"""Answers that are kept for later requests: in memory, the least used go first."""

from collections import OrderedDict
from typing import Any

import msgspec


class Kept(msgspec.Struct):
    """A response, and the conversation that it ended, as chat templates see it."""

    response: dict[str, Any]
    messages: list[dict[str, Any]]


class ResponseStore:
    """Keeps responses under their owner's name within `max_bytes`; nobody else finds them. Lost with the process."""

    def __init__(self, max_bytes: int) -> None:
        self._left = max_bytes
        self._kept: OrderedDict[tuple[bytes, str], bytes] = OrderedDict()

    def put(self, owner: bytes, kept: Kept) -> None:
        """Keep a response under its id; one that is too large for the whole store is not kept."""
        data = msgspec.json.encode(kept)  # unlike MessagePack with numbers of any length
        self._kept[owner, kept.response["id"]] = data
        self._left -= len(data)
        while self._left < 0:
            _, oldest = self._kept.popitem(last=False)
            self._left += len(oldest)

    def get(self, owner: bytes, response_id: str) -> Kept | None:
        """The response, which is then the last one to go."""
        data = self._kept.get((owner, response_id))
        if data is None:
            return None
        self._kept.move_to_end((owner, response_id))
        return msgspec.json.decode(data, type=Kept)

    def delete(self, owner: bytes, response_id: str) -> bool:
        """Forget the response; False where there is none."""
        data = self._kept.pop((owner, response_id), None)
        self._left += len(data or b"")
        return data is not None
