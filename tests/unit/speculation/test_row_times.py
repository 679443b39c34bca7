"""What steps take of the predicted time, by their rows."""

import random

import pytest
from numaserve.server.speculation.row_times import RowTimes


def seen(ratios: dict[int, float], times: int = 40) -> RowTimes:
    subject, drawn = RowTimes(), random.Random(0)
    for _ in range(times):
        for rows, ratio in ratios.items():
            subject.took(rows, ratio * drawn.gauss(1.0, 0.05))
    return subject


def test_as_long_as_nothing_was_seen_the_prediction_holds() -> None:
    assert RowTimes().ratio(7) == 1.0


def test_each_number_of_rows_is_as_it_was_seen() -> None:
    stairs = {rows: 0.8 if rows <= 6 else 1.2 for rows in range(1, 13)}
    subject = seen(stairs)
    assert [subject.ratio(rows) for rows in stairs] == pytest.approx(list(stairs.values()), rel=0.1)


@pytest.mark.parametrize(("rows", "ratio"), [(1, 0.8), (5, 0.8), (7, 1.0), (9, 1.2), (30, 1.2), (1000, 1.2)])
def test_what_was_not_seen_is_as_what_is_next_to_it(rows: int, ratio: float) -> None:
    assert seen({5: 0.8, 9: 1.2}).ratio(rows) == pytest.approx(ratio, rel=0.1)


def test_of_many_rows_eight_are_one() -> None:
    subject = seen({33: 0.8, 41: 1.2})
    assert subject.ratio(40) == subject.ratio(33) != subject.ratio(41) == subject.ratio(48)


def test_a_step_that_took_long_says_little_and_is_forgotten() -> None:
    subject = seen({1: 1.0, 4: 1.0})
    subject.took(4, 100.0)
    assert subject.ratio(4) < 1.2
    for _ in range(40):
        subject.took(4, 4.0)
    assert subject.ratio(4) > 3.0
    for _ in range(1000):
        subject.took(1, 1.0)
    assert subject.ratio(4) < 1.2


def test_many_numbers_of_rows_that_were_bad_at_a_time_are_forgotten_too() -> None:
    subject = seen({16: 1.0} | dict.fromkeys(range(17, 25), 3.0))
    for _ in range(1500):
        subject.took(16, 1.0)
    assert max(subject.ratio(rows) for rows in range(17, 25)) < 1.1
