"""The marks of a running sequence: positions after which others can go on."""

from bisect import insort
from dataclasses import dataclass, field
from typing import NamedTuple

from numaserve.server.scheduler.cache.holdings import Holding
from numaserve.server.scheduler.cache.mark_kinds import MarkKind
from numaserve.server.scheduler.cache.radix_tree import Node


class Wanted(NamedTuple):
    """A mark to come."""

    position: int
    kind: MarkKind


class Mark(NamedTuple):
    """A mark that was planned."""

    position: int
    holding: Holding
    kind: MarkKind


@dataclass(eq=False, slots=True)
class Anchor:
    """The holding of a node, with which a sequence can go on after its tokens."""

    node: Node
    holding: Holding
    kind: MarkKind
    sound: bool  # logits that are numbers have come of it, or of a later one
    used: bool = False  # by a sequence


@dataclass(eq=False, slots=True)
class Marks:
    """The marks of a sequence since its admission."""

    began: Anchor | None = None  # the anchor with which it began
    begin: int = -1  # snapshot that its next plan loads; -1: zeros at the first position, or the slot's states
    wanted: list[Wanted] = field(default_factory=list)  # in order of positions
    planned: list[Mark] = field(default_factory=list)  # by the plan in the making
    held: list[Mark] = field(default_factory=list)  # whose pages are not in the tree
    rolling: Mark | None = None  # in its output; the next one overwrites the same snapshot
    missed: int = 0  # position of the rolling mark that was left out for lack of a snapshot; 0: none
    unproven: list[Anchor] = field(default_factory=list)  # with which it began, or which it has made
    proven: int = 0  # position before which all gave numbers as logits

    @property
    def num_held(self) -> int:
        """The number of snapshots that the sequence holds."""
        return len(self.planned) + len(self.held) + (self.rolling is not None)

    def want(self, position: int, kind: MarkKind) -> None:
        """Want a mark after `position` tokens. If it is wanted already, the lower kind counts."""
        for index, each in enumerate(self.wanted):
            if each.position == position:
                self.wanted[index] = Wanted(position, min(kind, each.kind))
                return
        insort(self.wanted, Wanted(position, kind))
