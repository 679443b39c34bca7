"""The order in which anchors lose their snapshots."""

from numaserve.server.scheduler.cache.anchors import Anchors
from numaserve.server.scheduler.cache.marks import Anchor

from tests.simulation.truth import NAN
from tests.simulation.world import World


class AnchorOrder:
    """Checks that of the anchors that no sequence has used, the oldest of a kind is the first to lose its snapshot.

    The times of uses are not known here, so used anchors are left out. With window pages an older anchor may stay that
    would free none, which is not known here either. Nor is any anchor sound whose states came of a NaN.
    """

    def __init__(self, world: World, anchors: Anchors) -> None:
        self._world = world
        self._anchors = anchors
        self._is_ordered = not anchors._holdings.windows
        self._unused: dict[Anchor, bool] = {}  # at the last check, the oldest first; whether it is sound

    def check(self) -> None:
        """Compare the anchors with those of the last check."""
        anchors = list(self._anchors._of.values())
        if any(each.sound and NAN in each.node.key for each in anchors):
            self._world.violate("states after a NaN are taken to be sound")
        unused = [each for each in anchors if not each.used]
        left = [each for each in self._unused if each in unused]
        if left != unused[: len(left)]:
            self._world.violate("anchors have changed their order without being used")
        older: list[Anchor] = []
        for each, was_sound in self._unused.items():
            if each in left:
                # One that is being written to disk is passed over.
                older += [] if each.node in self._anchors._pinned else [each]
            elif not self._is_ordered or not was_sound or each.used or not _is_found(each):
                continue
            elif any(old.kind is each.kind for old in older):
                self._world.violate("an anchor has lost its snapshot before an older one")
        self._unused = {each: each.sound for each in unused}


def _is_found(anchor: Anchor) -> bool:
    node = anchor.node
    return not node.hidden and node.parent is not None and node.parent.children.get(node.key) is node
