"""The removal of records that have become too old, while the server serves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from numaserve.server.scheduler.disk.changes import Change, Dropped, RecordKind
from numaserve.server.scheduler.disk.directory import DiskDirectory

_LOOK_S = 60.0


class Upkeep:
    """Looks every minute, in the event loop, for nodes that are too old, and has their records erased.

    A slot is given back when its record has been erased: what is written to it later must stay.
    """

    def __init__(
        self,
        directories: Mapping[RecordKind, DiskDirectory],
        append: Callable[[Sequence[Change]], None],
        erase: Callable[[Mapping[RecordKind, Sequence[int]], Callable[[], None]], None],
        max_age_s: int,
    ) -> None:
        """Begin to look. `append` keeps changes; `erase` erases records on all ranks, and calls back."""
        self._directories, self._append, self._erase = directories, append, erase
        self._max_age_s = max_age_s
        self._loop = asyncio.get_running_loop()
        self._loop.call_later(_LOOK_S, self._look_again)

    def look(self, now: int) -> None:
        """Drop the nodes that are too old at a time, in unix seconds."""
        for kind, directory in self._directories.items():
            dropped = directory.expire(now - self._max_age_s)
            if dropped:
                self._append([Dropped(kind, digest) for _, digest in dropped])
                slots = [slot for slot, _ in dropped]
                self._erase({kind: slots}, partial(self._give_back, directory, slots))

    def _look_again(self) -> None:
        self.look(round(time.time()))
        self._loop.call_later(_LOOK_S, self._look_again)

    @staticmethod
    def _give_back(directory: DiskDirectory, slots: Sequence[int]) -> None:
        for slot in slots:
            directory.give_back(slot)
