"""Changes of cached pages, as data for their publisher."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import cast

from numaserve.server.scheduler.adapter import Adapter
from numaserve.server.scheduler.cache.keys import Content, PageKey, contents_of
from numaserve.server.scheduler.cache.scope import CacheScope


@dataclass(slots=True)
class PagesStored:
    """Full pages that are found from now on, each one the child of the one before it."""

    parent: int | None  # of the first; None: it is the first of its prompts
    digests: list[int]
    tokens: list[int]  # of all pages, in order
    contents: dict[int, tuple[Content, ...]] = field(default_factory=dict)  # by digest, of pages with other than text
    adapter: str | None = None  # its name; None: the model alone
    on_disk: bool = False  # whether this is about pages on disk; they may be in memory too


@dataclass(slots=True)
class PagesRemoved:
    """Pages that are no longer found."""

    digests: list[int]
    on_disk: bool = False  # as in `PagesStored`


@dataclass(slots=True)
class PagesCleared:
    """No page is found any more, in memory or on disk."""


KVEvent = PagesStored | PagesRemoved | PagesCleared


class KVEventLog:
    """Events in the order in which they happened, until they are taken.

    A page is named by its digest: 64 bits of BLAKE2b over its parent's digest, its tokens and other keys, and at the
    beginning over `model`. It is the same in each server of that model, as readers that know several servers expect; a
    number counted up would mean other tokens in each. Nothing here is found by it: the tree compares keys.

    Pages of an adapter begin over its name and its content too. Servers with the same adapter under the same name agree
    on their digests, and no such page has the digest of a page of the model alone. vLLM hashes the name alone: other
    files under the same name then have the digests of the earlier files' pages.

    `changed` is called when there is an event after there was none.
    """

    def __init__(self, model: str, changed: Callable[[], None] = lambda: None) -> None:
        self._root = _digest(model.encode())
        self._withdrawn: set[Adapter] = set()
        self.changed = changed
        self._events: list[KVEvent] = []
        self._num_on_disk = 0  # pages that were stored on disk and not removed

    def root_of(self, scope: CacheScope) -> int:
        """Return the digest before the first pages of a scope; 0: no page of the scope is in an event."""
        if not scope.public or scope.adapter in self._withdrawn:
            return 0
        return self._root_of(scope.adapter)

    def withdraw(self, adapter: Adapter) -> None:
        """Note no further pages of an adapter that serves its last requests.

        The next load of the same files has pages of the same digests.
        """
        self._withdrawn.add(adapter)

    def forget(self, adapter: Adapter) -> None:
        """Forget a withdrawn adapter, which no request uses any more."""
        self._withdrawn.discard(adapter)

    def stored(
        self, parent: int, key: PageKey, tokens: tuple[int, ...] | None = None, *, adapter: Adapter | None = None
    ) -> int:
        """Note a new page after the page (or the root) of digest `parent`. Returns the page's digest.

        `tokens` are the page's token ids, where the key has other content among them. The page is computed with
        `adapter`.
        """
        content = b""
        if tokens is None:
            tokens = cast("tuple[int, ...]", key)  # of text
        else:
            other = ((index, each) for index, each in enumerate(key) if isinstance(each, bytes))
            content = b"".join(index.to_bytes(4, "little") + each for index, each in other)
        digest = _digest(parent.to_bytes(8, "little") + array("I", tokens).tobytes() + content)
        last = self._events[-1] if self._events else None
        if isinstance(last, PagesStored) and not last.on_disk and last.digests[-1] == parent:
            last.digests.append(digest)
            last.tokens.extend(tokens)
        else:
            first = parent == self._root_of(adapter)
            last = PagesStored(None if first else parent, [digest], list(tokens))
            last.adapter = None if adapter is None else adapter.name
            self._add(last)
        if content:
            last.contents[digest] = contents_of(key)
        return digest

    def removed(self, digest: int) -> None:
        """Note that the page of `digest` is not found in memory any more."""
        self._removed(digest, on_disk=False)

    def stored_on_disk(self, parent: int | None, digest: int, tokens: PageKey) -> None:
        """Note that a page of text that is stored in memory is on disk too, like its parent; None: it has none."""
        self._num_on_disk += 1
        last = self._events[-1] if self._events else None
        if isinstance(last, PagesStored) and last.on_disk and last.digests[-1] == parent:
            last.digests.append(digest)
            last.tokens.extend(cast("tuple[int, ...]", tokens))
        else:
            self._add(PagesStored(parent, [digest], list(cast("tuple[int, ...]", tokens)), on_disk=True))

    def removed_from_disk(self, digest: int) -> None:
        """Note that the page of `digest` is not on disk any more."""
        self._num_on_disk -= 1
        self._removed(digest, on_disk=True)

    def cleared_on_disk(self) -> None:
        """Note that there are no pages on disk and in memory, whatever was before."""
        self._num_on_disk = 0
        self.cleared()

    def cleared(self) -> None:
        """Note that there are no pages in memory, whatever was before: in one event, unless pages are on disk. The
        removal of each page is noted before."""
        if self._num_on_disk:
            return
        if self._events:
            self._events = [PagesCleared()]  # older events no longer matter
        else:
            self._add(PagesCleared())

    def take(self) -> list[KVEvent]:
        """The events since this was last called."""
        events, self._events = self._events, []
        return events

    def _removed(self, digest: int, *, on_disk: bool) -> None:
        last = self._events[-1] if self._events else None
        if isinstance(last, PagesRemoved) and last.on_disk == on_disk:
            last.digests.append(digest)
        else:
            self._add(PagesRemoved([digest], on_disk))

    def _root_of(self, adapter: Adapter | None) -> int:
        if adapter is None:
            return self._root
        return _digest(self._root.to_bytes(8, "little") + f"{adapter.name}\0{adapter.digest}".encode())

    def _add(self, event: KVEvent) -> None:
        self._events.append(event)
        if len(self._events) == 1:
            self.changed()


def _digest(content: bytes) -> int:
    """Return the digest, never 0: that stands for a page of which no event exists."""
    return int.from_bytes(blake2b(content, digest_size=8).digest(), "little") or 1
