"""Conversations of a model with states find nearly all that pages alone would find, with few snapshots."""

import dataclasses

import pytest

from tests.bench.bench_sessions import LOADS, Load, run

SNAPSHOTS_A_SESSION = 1.5
LEAST_FOUND = 0.95  # of what a model of pure attention finds

# The fewer sessions there are, the more each computes of the system prompt.
_SOME = [LOADS[0], LOADS[3]]


def _found(load: Load) -> float:
    pure, states = run(load, 0), run(load, int(SNAPSHOTS_A_SESSION * load.sessions))
    assert states.asked == pure.asked
    return states.cached / pure.cached


@pytest.mark.parametrize("load", _SOME, ids=str)
def test_a_few_sessions_find_what_they_have_left(load: Load) -> None:
    assert _found(dataclasses.replace(load, sessions=16)) >= LEAST_FOUND


@pytest.mark.slow
@pytest.mark.parametrize("load", LOADS, ids=str)
def test_many_sessions_find_what_they_have_left(load: Load) -> None:
    assert _found(load) >= LEAST_FOUND
