"""Drafters for tests: each sequence's is made by a function, and no step begins anything."""

from collections.abc import Callable
from dataclasses import dataclass

from numaserve.server.scheduler.drafting import Drafter


@dataclass(frozen=True)
class Each:
    """`make` is called with the `cache_salt` of each sequence."""

    make: Callable[[str], Drafter]

    def begin_step(self) -> None: ...
