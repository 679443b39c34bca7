"""The snapshots of a model with recurrent states."""


class Snapshots:
    """A free list of snapshots.

    A snapshot that the plan in the making names, to begin from it or to store in it, is not given out again by that
    plan: sequences of one plan may run in any order. `begin_step` ends this.
    """

    def __init__(self, count: int) -> None:
        self._free = list(range(count - 1, -1, -1))
        self._freed: list[int] = []  # named by the plan in the making, and free from the next one on
        self._named: set[int] = set()

    @property
    def num_free(self) -> int:
        """The number of free snapshots."""
        return len(self._free) + len(self._freed)

    @property
    def can_take(self) -> bool:
        """Whether the plan in the making can have a snapshot."""
        return bool(self._free)

    def begin_step(self) -> None:
        """Begin a plan: snapshots that the plan before names may be given out again."""
        self._free += self._freed
        self._freed.clear()
        self._named.clear()

    def take(self) -> int:
        """Return a snapshot, which the plan in the making names from now on. There must be one."""
        snapshot = self._free.pop()
        self._named.add(snapshot)
        return snapshot

    def name(self, snapshot: int) -> None:
        """Note that the plan in the making names a snapshot."""
        self._named.add(snapshot)

    def is_named(self, snapshot: int) -> bool:
        """Return whether the plan in the making names a snapshot."""
        return snapshot in self._named

    def free(self, snapshot: int) -> None:
        """Take a snapshot back."""
        (self._freed if snapshot in self._named else self._free).append(snapshot)
