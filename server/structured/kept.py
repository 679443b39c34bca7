"""Compiled grammars that are kept for the next request with the same constraint."""

from collections import OrderedDict

from numaserve.server.structured.types import Constraint, MatcherFactory


class KeptGrammars:
    """The compiled grammars that were used last, as many as fit a number of bytes."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._kept: OrderedDict[Constraint, tuple[MatcherFactory, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, constraint: Constraint) -> MatcherFactory | None:
        """What was kept for `constraint`, if it still is."""
        if (kept := self._kept.get(constraint)) is None:
            return None
        self._kept.move_to_end(constraint)
        return kept[0]

    def keep(self, constraint: Constraint, factory: MatcherFactory, nbytes: int) -> None:
        """Keep `factory`, which takes `nbytes`, in place of those that were not used for longest."""
        if constraint in self._kept or nbytes > self._max_bytes:
            return
        self._kept[constraint] = (factory, nbytes)
        self._bytes += nbytes
        while self._bytes > self._max_bytes:
            _, (_, freed) = self._kept.popitem(last=False)
            self._bytes -= freed
