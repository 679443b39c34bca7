"""The removal of records whose time or key has gone, while the server serves."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from numaserve.server.scheduler.disk.changes import Change, Dropped, RecordKind
from numaserve.server.scheduler.disk.directory import DiskDirectory

_LOOK_S = 60.0

_log = logging.getLogger(__name__)


class Upkeep:
    """Looks every minute, in the event loop, for nodes to drop, and erases their records in a thread.

    A slot is given back when its record has been erased: what is written to it later must stay.
    """

    def __init__(
        self,
        directories: Mapping[RecordKind, DiskDirectory],
        append: Callable[[Sequence[Change]], None],
        erase: Callable[[RecordKind, Collection[int]], None],
        groups: Callable[[], Collection[str] | None],
        max_age_s: int | None,
    ) -> None:
        """Begin to look. `append` keeps changes; `erase` erases records on all ranks, and raises `OSError`. `groups`
        returns the cache groups that exist; None: they are not known."""
        self._directories, self._append, self._erase = directories, append, erase
        self._groups, self._max_age_s = groups, max_age_s
        self._known = groups()
        self._loop = asyncio.get_running_loop()
        self._loop.call_later(_LOOK_S, self._look_again)

    def look(self, now: int) -> None:
        """Drop the nodes that are not wanted at a time, in unix seconds."""
        groups = self._groups()
        for kind, directory in self._directories.items():
            dropped = [] if self._max_age_s is None else directory.expire(now - self._max_age_s)
            if groups is not None and groups != self._known:
                dropped += directory.drop_groups(groups)
            if dropped:
                self._append([Dropped(kind, digest) for _, digest in dropped])
                slots = [slot for slot, _ in dropped]
                # A daemon: a disk that hangs cannot keep the server from ending.
                threading.Thread(
                    target=self._erase_slots, args=(kind, slots), name="kv-disk-erase", daemon=True
                ).start()
        self._known = groups

    def _look_again(self) -> None:
        self.look(round(time.time()))
        self._loop.call_later(_LOOK_S, self._look_again)

    def _erase_slots(self, kind: RecordKind, slots: list[int]) -> None:
        try:
            self._erase(kind, slots)
        except OSError as error:
            # The next start tries again. Until then nothing is written to these slots.
            _log.warning("disk tier: %d records could not be erased (%s)", len(slots), error.strerror)
            return
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._give_back, kind, slots)

    def _give_back(self, kind: RecordKind, slots: list[int]) -> None:
        for slot in slots:
            self._directories[kind].give_back(slot)
