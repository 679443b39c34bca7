"""Which drafters a sequence has."""

import pytest
from numaserve.server.config.option_types import drafters_meant
from numaserve.server.scheduler.cache.scope import COMMON_SCOPE, CacheScope
from numaserve.server.scheduler.client import Client
from numaserve.server.speculation.constraint import KnownConstraint
from numaserve.server.speculation.server_drafters import DRAFTERS, ServerDrafters
from numaserve.workers.interface.protocol import SamplingParams

from tests.support.sequences import sequence


@pytest.mark.parametrize(
    ("names", "meant"),
    [
        (["off"], ()),
        (["auto"], DRAFTERS),
        ([], ()),
        (["suffix"], ("suffix",)),
        (["suffix", "prediction"], ("prediction", "suffix")),
    ],
)
def test_names_mean_drafters(names: list[str], meant: tuple[str, ...]) -> None:
    assert drafters_meant(names) == meant  # type: ignore[arg-type]


def test_only_a_constrained_sequence_has_one_that_looks_at_its_constraint() -> None:
    seq = sequence("a", [1], SamplingParams(masked=True), 5)
    assert [each.name for each in ServerDrafters(DRAFTERS).make(seq, KnownConstraint())] == ["suffix", "grammar"]


@pytest.mark.parametrize(
    ("allowed", "prediction", "made"),
    [
        (None, (), ["suffix"]),
        (None, (5,), ["prediction", "suffix"]),
        (frozenset(("suffix",)), (5,), ["suffix"]),
        (frozenset(("prediction",)), (5,), ["prediction"]),
        (frozenset[str](), (5,), []),
    ],
)
def test_a_sequence_has_those_that_it_allows(
    allowed: frozenset[str] | None, prediction: tuple[int, ...], made: list[str]
) -> None:
    seq = sequence("a", [1], SamplingParams(), 5, drafters=allowed, prediction=prediction)
    assert [each.name for each in ServerDrafters(DRAFTERS).make(seq, KnownConstraint())] == made


def test_a_server_has_no_other_drafters_than_its_own() -> None:
    seq = sequence("a", [1], SamplingParams(), 5, drafters=frozenset(DRAFTERS), prediction=(5,))
    assert [each.name for each in ServerDrafters(("prediction",)).make(seq, KnownConstraint())] == ["prediction"]


def test_a_sequence_drafts_from_texts_of_its_own_scope_alone() -> None:
    drafters = ServerDrafters(("suffix",))
    drafters.begin_step()

    def drafted(tokens: list[int], scope: CacheScope) -> list[int]:
        seq = sequence("a", tokens, SamplingParams(), 5, client=Client(cache_group=scope.group))
        [drafter] = drafters.make(seq, KnownConstraint())
        return drafter.draft(seq.tokens, 2)

    team = CacheScope("team")
    drafted([1, 2, 3, 4, 5], team)
    assert [drafted([9, 1, 2, 3], scope) for scope in (COMMON_SCOPE, CacheScope("other"), team)] == [[], [], [4, 5]]
