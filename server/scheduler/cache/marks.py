"""The marks of a running sequence: positions after which its plans store its states."""

from bisect import insort
from dataclasses import dataclass, field
from typing import NamedTuple

from numaserve.server.scheduler.cache.anchors import Anchor


class Wanted(NamedTuple):
    """A mark to come."""

    position: int
    evicts: bool  # it may cost the least recently used anchor its snapshot


class Mark(NamedTuple):
    """A mark that was planned."""

    position: int
    snapshot: int


@dataclass(eq=False, slots=True)
class Marks:
    """The marks of a sequence since its admission."""

    begin: int = -1  # snapshot that its next plan loads; -1: zeros at the first position, or the slot's states
    wanted: list[Wanted] = field(default_factory=list)  # in order of positions
    planned: list[Mark] = field(default_factory=list)  # by the plan in the making
    held: list[Mark] = field(default_factory=list)  # whose pages are not in the tree
    rolling: Mark | None = None  # in its output; the next one overwrites the same snapshot
    unproven: list[Anchor] = field(default_factory=list)  # with which it began, or which it has made
    proven: int = 0  # position before which all gave numbers as logits

    @property
    def num_held(self) -> int:
        """The number of snapshots that the sequence holds."""
        return len(self.planned) + len(self.held) + (self.rolling is not None)

    def want(self, position: int, *, evicts: bool = True) -> None:
        """Want a mark after `position` tokens, unless one is wanted there; either may evict if one of both may."""
        for index, each in enumerate(self.wanted):
            if each.position == position:
                self.wanted[index] = Wanted(position, evicts or each.evicts)
                return
        insort(self.wanted, Wanted(position, evicts))
