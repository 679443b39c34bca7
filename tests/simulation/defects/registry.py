"""The list of defects, and how one is put into the server."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest


@dataclass(frozen=True)
class Defect:
    """A way to put a defect into the server, and where the search for it begins.

    `first_seed` of a rare defect is shortly before the seed that finds it today: the seeds before that one take most of
    the time. When a change moves that seed, the search goes on for as many seeds as from seed 0.
    """

    applied: Callable[[], AbstractContextManager[None]]
    first_seed: int


DEFECTS: dict[str, Defect] = {}


def defect(owner: type, method: str, first_seed: int = 0) -> Callable[[Callable[..., Any]], None]:
    """Have the decorated function, which gets the right method as its first argument, stand in for it."""

    def register(wrong: Callable[..., Any]) -> None:
        @contextmanager
        def applied() -> Iterator[None]:
            right = getattr(owner, method)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(owner, method, lambda *arguments, **named: wrong(right, *arguments, **named))
                yield

        DEFECTS[wrong.__name__] = Defect(applied, first_seed)

    return register
