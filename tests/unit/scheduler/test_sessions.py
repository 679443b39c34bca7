"""Conversations of a model with states or windows find nearly all that pages alone would find, with few anchors."""

import dataclasses

import pytest

from tests.bench.bench_sessions import LOADS, Load, planned, run

SNAPSHOTS_A_SESSION = 1.5
LEAST_FOUND = 0.95  # of what a model of pure attention finds

# The fewer sessions there are, the more each computes of the system prompt.
_SOME = [LOADS[0], LOADS[3]]


WINDOWS = [0, 128, 1024]  # of gpt-oss and of Gemma 3; 0: a model with states


def _found(load: Load, window: int) -> float:
    pure = run(load)
    if window:
        found = run(load, windows=(planned(window, load.sessions),))
    else:
        found = run(load, int(SNAPSHOTS_A_SESSION * load.sessions))
    assert found.asked == pure.asked
    return found.cached / pure.cached


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("load", _SOME, ids=str)
def test_a_few_sessions_find_what_they_have_left(load: Load, window: int) -> None:
    assert _found(dataclasses.replace(load, sessions=16), window) >= LEAST_FOUND


@pytest.mark.slow
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("load", LOADS, ids=str)
def test_many_sessions_find_what_they_have_left(load: Load, window: int) -> None:
    assert _found(load, window) >= LEAST_FOUND
