"""Which compiled grammars are kept."""

from typing import cast

from numaserve.server.scheduler.cache.scope import COMMON_SCOPE
from numaserve.server.structured.grammar_cache import GrammarCache
from numaserve.server.structured.types import Constraint, MatcherFactory

_FACTORY = cast(MatcherFactory, object())


def test_what_was_not_used_for_longest_is_forgotten_first() -> None:
    kept = GrammarCache(10_000)
    a, b, c = ((COMMON_SCOPE, Constraint("regex", text)) for text in "abc")
    for scoped in (a, b):
        kept.keep("", scoped, _FACTORY, 4000)
    kept.get(a)
    kept.keep("", c, _FACTORY, 4000)
    assert kept.get(a) and kept.get(c) and not kept.get(b)


def test_one_client_s_grammars_leave_those_of_another() -> None:
    kept = GrammarCache(10_000)
    kept.keep("one", (COMMON_SCOPE, Constraint("regex", "a")), _FACTORY, 1000)
    for number in range(50):
        kept.keep("two", (COMMON_SCOPE, Constraint("regex", f"{number}")), _FACTORY, 1000)
    assert kept.get((COMMON_SCOPE, Constraint("regex", "a")))
    assert kept.get((COMMON_SCOPE, Constraint("regex", "49")))
    assert len(kept) < 10


def test_what_is_kept_already_does_not_count_twice() -> None:
    kept = GrammarCache(10_000)
    for client in ("one", "two"):
        for _ in range(20):
            kept.keep(client, (COMMON_SCOPE, Constraint("regex", "a")), _FACTORY, 4000)
    kept.keep("two", (COMMON_SCOPE, Constraint("regex", "b")), _FACTORY, 4000)
    assert len(kept) == 2


def test_what_is_larger_than_all_that_may_be_kept_is_not_kept() -> None:
    kept = GrammarCache(1000)
    kept.keep("", (COMMON_SCOPE, Constraint("regex", "a")), _FACTORY, 1001)
    assert len(kept) == 0
