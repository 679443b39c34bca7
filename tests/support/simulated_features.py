"""The images of simulated requests, and the feature pool of simulated workers."""

import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

from msgspec import UNSET
from numaserve.server.scheduler.images import Tile
from numaserve.workers.interface.protocol import StepPlan, TowerWork

NOTHING = None  # in a place whose run failed, or did not come


class SimulatedImageStore:
    """Tiles, each with content of its own. A number is used again as soon as the tile of that number is gone.

    `owners` has the seed of the sequence whose prompt a tile is in.
    """

    def __init__(self) -> None:
        self.contents: dict[int, Hashable] = {}
        self.owners: dict[int, int] = {}
        self._free: list[int] = []

    def write(self, content: Hashable, digest: bytes, owner: int, rows: int) -> Tile:
        """Return a new tile with this number of feature rows."""
        number = self._free.pop() if self._free else len(self.contents)
        self.contents[number], self.owners[number] = content, owner
        tile = Tile(number, digest, 1, rows)
        weakref.finalize(tile, self._gone, number)
        return tile

    def _gone(self, number: int) -> None:
        del self.contents[number], self.owners[number]
        self._free.append(number)


class SimulatedFeatures:
    """The feature pool and the tower: a sequence that takes rows that are not those of its own image is found.

    `violate` is called with what is wrong. The contents of tiles name their scope, so that features which another scope
    has made are found, too.
    """

    def __init__(
        self,
        places: int,
        rows: int,
        contents: Mapping[int, Hashable],
        violate: Callable[[str], None],
        parts: Sequence[float],
    ) -> None:
        """`parts` has the share of each part of a run of the tower."""
        self._rows = rows
        self._parts = parts
        self._begun: tuple[int, Hashable, int] | None = None  # tile, its content, and the next part of a run
        self._contents = contents
        self._violate = violate
        self._places: list[Hashable] = [NOTHING] * places
        self._unsound: set[Hashable] = set()  # may be made again

    def sent(self, plan: StepPlan, in_flight: Iterable[StepPlan]) -> None:
        """Check a plan against the plans before it whose answers count and have not come: what they read and write
        stays as it is until then."""
        used = {place for each in in_flight for place in self._named(each)}
        written = [work.place for work in plan.tower or [] if self._is_last(work)]
        if used.intersection(written):
            self._violate(f"plan {plan.step_id} writes features where a plan in flight has some")
        if (plan.tower is not UNSET and not plan.tower) or (plan.placed is not UNSET and not plan.placed):
            self._violate(f"plan {plan.step_id} has a list of images that is empty")
        untaken = set(written) - {row.row // self._rows for row in plan.placed or []}
        if len(set(written)) < len(written) or len(untaken) > 1:  # a run in parts may end before there is time
            self._violate(f"plan {plan.step_id} makes features twice, or features that it does not take")
        if any(not 0 <= place < len(self._places) for place in self._named(plan)):
            self._violate(f"plan {plan.step_id} names a place that the pool does not have")

    def run(self, plan: StepPlan, shown: Sequence[Mapping[int, Hashable]]) -> None:
        """Run a plan: first the tower. `shown` has the contents of each sequence's tiles, by their first positions."""
        for work in plan.tower or []:
            content = self._read(work.tile)
            if work.begin and self._begun != (work.tile, content, work.begin):
                self._violate(f"plan {plan.step_id} has part {work.begin} of a run after {self._begun}")
            if not self._is_last(work):
                self._begun = work.tile, content, work.end
                self._places[work.place] = NOTHING  # it is this run's from now on
                continue
            self._begun = None
            if content in self._places and content not in self._unsound:
                self._violate(f"plan {plan.step_id} makes features again that are found")
            self._places[work.place] = content
            self._unsound.discard(content)
        found: dict[tuple[int, int], tuple[Hashable, int]] = {}
        for each in plan.placed or []:
            for offset in range(each.count):
                place, row = divmod(each.row + offset, self._rows)
                if (each.index, each.start + offset) in found:
                    self._violate(f"plan {plan.step_id} places two rows at the same position")
                found[each.index, each.start + offset] = self._places[place], row
        wanted = {
            (index, start + row): (content, row)
            for index, (seq, tiles) in enumerate(zip(plan.seqs, shown, strict=True))
            for start, content in tiles.items()
            for row in range(self._rows)
            if seq.start <= start + row < seq.start + seq.num_tokens
        }
        if found != wanted:
            self._violate(f"plan {plan.step_id} takes the features {found} in place of {wanted}")

    def doubt(self, tiles: Mapping[int, Hashable]) -> None:
        """Note that a sequence with these tiles had no numbers as logits."""
        self._unsound.update(tiles.values())

    def spoil(self, plan: StepPlan) -> None:
        """Empty all places, and end the begun run: a plan failed, or one before it did. The tower may have read its
        tiles all the same."""
        self._begun = None
        for work in plan.tower or []:
            self._read(work.tile)
        self._places = [NOTHING] * len(self._places)

    def share(self, plan: StepPlan) -> float:
        """Return the share of whole runs of the tower in a plan."""
        return sum(sum(self._parts[work.begin : work.end or None]) for work in plan.tower or [])

    def _is_last(self, work: TowerWork) -> bool:
        end = work.end or len(self._parts)
        if not 0 <= work.begin < end <= len(self._parts):
            self._violate(f"the tower has no parts {work.begin} to {work.end}")
        return end == len(self._parts)

    def _read(self, tile: int) -> Hashable:
        if tile not in self._contents:
            self._violate(f"the tower reads the pixels of tile {tile}, which is gone")
        return self._contents.get(tile, NOTHING)

    def _named(self, plan: StepPlan) -> set[int]:
        placed = {row for each in plan.placed or [] for row in (each.row, each.row + each.count - 1)}
        return {work.place for work in plan.tower or [] if self._is_last(work)} | {row // self._rows for row in placed}
