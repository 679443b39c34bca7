"""Which compiled grammars are kept."""

from typing import cast

from numaserve.server.scheduler.cache_scope import COMMON_SCOPE
from numaserve.server.structured.kept import KeptGrammars
from numaserve.server.structured.types import Constraint, MatcherFactory

_FACTORY = cast(MatcherFactory, object())


def test_what_was_not_used_for_longest_is_forgotten_first() -> None:
    kept = KeptGrammars(100)
    a, b, c = ((COMMON_SCOPE, Constraint("regex", text)) for text in "abc")
    for scoped in (a, b):
        kept.keep(scoped, _FACTORY, 40)
    kept.get(a)
    kept.keep(c, _FACTORY, 40)
    assert kept.get(a) and kept.get(c) and not kept.get(b)


def test_what_is_larger_than_all_that_may_be_kept_is_not_kept() -> None:
    kept = KeptGrammars(100)
    kept.keep((COMMON_SCOPE, Constraint("regex", "a")), _FACTORY, 101)
    assert len(kept) == 0
