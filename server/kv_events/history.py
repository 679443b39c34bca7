"""The history that a subscriber can request again: the last batches, and the cached pages before them."""

from array import array
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from numaserve.server.kv_events.wire import DISK, AllBlocksCleared, BlockRemoved, BlockStored, decode, encode
from numaserve.server.scheduler.cache.keys import Content
from numaserve.server.scheduler.cache.kv_events import KVEvent, PagesCleared, PagesStored


@dataclass(frozen=True, slots=True)
class _Page:
    parent: int | None
    tokens: bytes  # 32 bits each
    contents: tuple[Content, ...]  # that are no text
    adapter: str | None


class History:
    """Batches with the numbers 0, 1, 2, ..., of which the last `limit` are kept as they were sent.

    Earlier batches are kept as their result: the pages that were cached then. A reader that requests any number
    therefore gets the whole tree, however long the server has run. vLLM drops batches that exceed its buffer, and
    leaves such a reader with a part of the tree.
    """

    def __init__(self, page_size: int, limit: int) -> None:
        self._page_size = page_size
        self._limit = limit
        self._batches: deque[bytes] = deque()
        self.first = 0  # the number of the first batch that is kept
        self._pages: dict[bool, dict[int, _Page]] = {False: {}, True: {}}  # cached before `first`, by digest; on disk

    @property
    def end(self) -> int:
        """The number of the next batch."""
        return self.first + len(self._batches)

    def add(self, payload: bytes) -> int:
        """Append a batch. Return its number."""
        self._batches.append(payload)
        if len(self._batches) > self._limit:
            self._apply(self._batches.popleft())
            self.first += 1
        return self.end - 1

    def batch(self, number: int) -> bytes:
        """Return the batch of a number in [`first`, `end`)."""
        return self._batches[number - self.first]

    def since(self, start: int, seconds: float) -> Iterator[tuple[int, bytes]]:
        """Yield the present batches from number `start` on, with their numbers; batches may be added meanwhile.

        When some of them are no longer kept, a summary batch comes first, with the number of the last dropped batch and
        the time `seconds`. The summary clears everything and stores the pages that were cached after that batch.
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
                pages = self._pages[event.medium == DISK]
                for digest in event.block_hashes:
                    pages.pop(digest, None)
            elif isinstance(event, AllBlocksCleared):
                self._pages = {False: {}, True: {}}

    def _store(self, event: BlockStored) -> None:
        parent = event.parent_block_hash
        for index, digest in enumerate(event.block_hashes):
            tokens = event.token_ids[index * self._page_size : (index + 1) * self._page_size]
            contents = (event.extra_keys[index] if event.extra_keys else None) or ()
            self._pages[event.medium == DISK][digest] = _Page(
                parent, array("I", tokens).tobytes(), tuple(contents), event.lora_name
            )
            parent = digest

    def _result(self) -> list[KVEvent]:
        events: list[KVEvent] = [PagesCleared()]
        for on_disk, pages in self._pages.items():
            for digest in _parents_first(pages):
                page, last = pages[digest], events[-1]
                tokens = array("I", page.tokens).tolist()
                if isinstance(last, PagesStored) and last.on_disk == on_disk and last.digests[-1] == page.parent:
                    last.digests.append(digest)
                    last.tokens.extend(tokens)
                else:
                    last = PagesStored(page.parent, [digest], tokens, adapter=page.adapter, on_disk=on_disk)
                    events.append(last)
                if page.contents:
                    last.contents[digest] = page.contents
        return events


def _parents_first(pages: Mapping[int, _Page]) -> Iterator[int]:
    """Yield the digests of pages, each branch after the other. The parent of a page on disk may be gone, or may have
    come back later than the page."""
    children: dict[int | None, list[int]] = {}
    for digest, page in pages.items():
        children.setdefault(page.parent if page.parent in pages else None, []).append(digest)
    waiting = children.get(None, [])[::-1]
    while waiting:
        digest = waiting.pop()
        yield digest
        waiting += children.get(digest, [])[::-1]
