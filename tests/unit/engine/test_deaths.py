"""Which deaths count towards giving up."""

from typing import cast

from numaserve.server.common.death import Cause
from numaserve.server.engine.recovery.deaths import Deaths
from numaserve.server.scheduler.sequence import Sequence
from numaserve.server.scheduler.suspects import Finding

NOBODY = Finding(None, put_down=False)
SUSPECTS = Finding(None, put_down=True)
FOUND = Finding(cast(Sequence, object()), put_down=True)
UNKNOWN, REQUEST, PASSING = Cause.UNKNOWN, Cause.REQUEST, Cause.PASSING


def test_a_death_is_explained_by_an_answered_step_since_the_last() -> None:
    deaths = Deaths()
    assert [deaths.cause(NOBODY, steps, 0) for steps in (0, 5, 5, 6, 6)] == [
        UNKNOWN,
        PASSING,
        UNKNOWN,
        PASSING,
        UNKNOWN,
    ]


def test_a_beat_of_the_heart_is_an_answer() -> None:
    deaths = Deaths()
    assert [deaths.cause(NOBODY, 0, beats) for beats in (0, 1, 1)] == [UNKNOWN, PASSING, UNKNOWN]


def test_a_death_that_is_put_down_to_suspects_is_explained() -> None:
    deaths = Deaths()
    assert [deaths.cause(each, 0, 0) for each in (NOBODY, SUSPECTS, SUSPECTS, FOUND)] == [
        UNKNOWN,
        REQUEST,
        REQUEST,
        REQUEST,
    ]


def test_one_conviction_after_the_other_without_a_step_explains_nothing() -> None:
    deaths = Deaths()
    assert [deaths.cause(FOUND, steps, beats=7 * steps + 7) for steps in (0, 0, 0, 4, 4)] == [
        PASSING,
        UNKNOWN,
        UNKNOWN,
        PASSING,
        UNKNOWN,
    ]
