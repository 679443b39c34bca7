"""Which compiled grammars are kept."""

from typing import cast

from numaserve.server.structured.kept import KeptGrammars
from numaserve.server.structured.types import Constraint, MatcherFactory

_FACTORY = cast(MatcherFactory, object())


def test_what_was_not_used_for_longest_is_forgotten_first() -> None:
    kept = KeptGrammars(100)
    a, b, c = (Constraint("regex", text) for text in "abc")
    for constraint in (a, b):
        kept.keep(constraint, _FACTORY, 40)
    kept.get(a)
    kept.keep(c, _FACTORY, 40)
    assert kept.get(a) and kept.get(c) and not kept.get(b)


def test_what_is_larger_than_all_that_may_be_kept_is_not_kept() -> None:
    kept = KeptGrammars(100)
    kept.keep(Constraint("regex", "a"), _FACTORY, 101)
    assert len(kept) == 0
