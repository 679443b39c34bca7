"""What a subscriber may ask for again: the last batches, and what was cached before them."""

from array import array
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from numaserve.server.kv_events.wire import AllBlocksCleared, BlockRemoved, BlockStored, decode, encode
from numaserve.server.scheduler.cache.kv_events import KVEvent, PagesCleared, PagesStored


@dataclass(frozen=True, slots=True)
class _Page:
    parent: int | None
    tokens: bytes  # 32 bits each


class History:
    """Batches by their numbers 0, 1, 2, ..., of which the last `limit` are kept as they were sent.

    Those before them are kept as their result: the pages that were cached then. So whoever asks from any number on gets
    what makes the whole tree, however long the server has run. vLLM forgets what its buffer does not hold, and leaves
    such a reader with a part of the tree.
    """

    def __init__(self, page_size: int, limit: int) -> None:
        self._page_size = page_size
        self._limit = limit
        self._batches: deque[bytes] = deque()
        self.first = 0  # the number of the first batch that is kept
        self._pages: dict[int, _Page] = {}  # before it, by digest, parents before their children

    @property
    def end(self) -> int:
        """The number of the next batch."""
        return self.first + len(self._batches)

    def add(self, payload: bytes) -> int:
        """Keep the next batch. Returns its number."""
        self._batches.append(payload)
        if len(self._batches) > self._limit:
            self._apply(self._batches.popleft())
            self.first += 1
        return self.end - 1

    def batch(self, number: int) -> bytes:
        """The batch of a number from `first` on and before `end`."""
        return self._batches[number - self.first]

    def since(self, start: int, seconds: float) -> Iterator[tuple[int, bytes]]:
        """The batches from number `start` on that there are now, with their numbers; others may be added meanwhile.

        When some of them are not kept, or not any more, one with the number of the last of those comes first, of the
        time `seconds`: it clears everything and stores what was cached after it.
        """
        end = self.end
        while start < end:
            if start < self.first:
                start = self.first
                yield start - 1, encode(self._result(), self._page_size, seconds)
            else:
                start += 1
                yield start - 1, self.batch(start - 1)

    def _apply(self, payload: bytes) -> None:
        for event in decode(payload).events:
            if isinstance(event, BlockStored):
                self._store(event)
            elif isinstance(event, BlockRemoved):
                for digest in event.block_hashes:
                    self._pages.pop(digest, None)
            elif isinstance(event, AllBlocksCleared):
                self._pages.clear()

    def _store(self, event: BlockStored) -> None:
        parent = event.parent_block_hash
        for index, digest in enumerate(event.block_hashes):
            tokens = event.token_ids[index * self._page_size : (index + 1) * self._page_size]
            self._pages[digest] = _Page(parent, array("I", tokens).tobytes())
            parent = digest

    def _result(self) -> list[KVEvent]:
        events: list[KVEvent] = [PagesCleared()]
        for digest, page in self._pages.items():
            tokens = array("I", page.tokens).tolist()
            last = events[-1]
            if isinstance(last, PagesStored) and last.digests[-1] == page.parent:
                last.digests.append(digest)
                last.tokens.extend(tokens)
            else:
                events.append(PagesStored(page.parent, [digest], tokens))
        return events
