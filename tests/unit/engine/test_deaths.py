"""Which deaths count towards giving up."""

from typing import cast

from numaserve.server.engine.deaths import Deaths
from numaserve.server.scheduler.sequence import Sequence
from numaserve.server.scheduler.suspects import Finding

NOBODY = Finding(None, put_down=False)
SUSPECTS = Finding(None, put_down=True)
FOUND = Finding(cast(Sequence, object()), put_down=True)


def test_a_death_is_explained_by_an_answered_step_since_the_last() -> None:
    deaths = Deaths()
    assert [deaths.explained(NOBODY, steps, 0) for steps in (0, 5, 5, 6, 6)] == [False, True, False, True, False]


def test_a_beat_of_the_heart_is_an_answer() -> None:
    deaths = Deaths()
    assert [deaths.explained(NOBODY, 0, beats) for beats in (0, 1, 1)] == [False, True, False]


def test_a_death_that_is_put_down_to_suspects_is_explained() -> None:
    deaths = Deaths()
    assert [deaths.explained(each, 0, 0) for each in (NOBODY, SUSPECTS, SUSPECTS, FOUND)] == [False, True, True, True]


def test_one_conviction_after_the_other_without_a_step_explains_nothing() -> None:
    deaths = Deaths()
    assert [deaths.explained(FOUND, steps, beats=7 * steps + 7) for steps in (0, 0, 0, 4, 4)] == [
        True,
        False,
        False,
        True,
        False,
    ]
