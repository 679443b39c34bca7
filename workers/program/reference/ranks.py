"""The exchange between the ranks of a program. In tests the ranks are threads of one process."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")
_PATIENCE_S = 120.0


@dataclass
class Group:
    """Some ranks that meet in each collective."""

    world: int
    _barrier: threading.Barrier = field(init=False)
    _parts: list[Any] = field(init=False)
    _failure: BaseException | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        """Make what they meet at."""
        self._barrier = threading.Barrier(self.world, timeout=_PATIENCE_S)
        self._parts = [None] * self.world

    def gather(self, rank: int, part: T) -> list[T]:
        """Every rank's part, in rank order. Raises what another rank failed with, or `threading.BrokenBarrierError`
        when one does not come."""
        self._parts[rank] = part
        self._meet()
        parts = list(self._parts)
        self._meet()
        return parts

    def leave(self, failure: BaseException) -> None:
        """End the waits of the others, who cannot go on without this rank: they fail with what was first."""
        self._failure = self._failure or failure
        self._barrier.abort()

    def _meet(self) -> None:
        try:
            self._barrier.wait()
        except threading.BrokenBarrierError:
            if self._failure is not None:
                raise self._failure from None
            raise


@dataclass(frozen=True)
class Member:
    """A rank of a group."""

    group: Group
    rank: int

    def gather(self, part: T) -> list[T]:
        """Every rank's part, in rank order."""
        return self.group.gather(self.rank, part)

    def run(self, body: Callable[[], T]) -> T:
        """Call `body`; the other ranks end too when it fails."""
        try:
            return body()
        except BaseException as failure:
            self.group.leave(failure)
            raise


def alone() -> Member:
    """The only rank of a group."""
    return Member(Group(1), 0)
