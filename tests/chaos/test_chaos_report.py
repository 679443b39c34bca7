"""What is told of a run."""

from dataclasses import replace

import pytest

from tests.chaos.flatness import SETTLED_S, medians_of_thirds
from tests.chaos.report import Report
from tests.chaos.served import Holdings

HELD = Holdings(10, 1, 5, 6, 100.0, 50.0, 20.0)


def test_what_grows_is_seen_in_the_thirds_and_what_is_so_once_is_not() -> None:
    growing = [replace(HELD, front_end_mib=100.0 + index) for index in range(20)]
    assert [each.front_end_mib for each in medians_of_thirds(growing)] == [103.0, 109.0, 116.0]
    once = [HELD] * 10 + [replace(HELD, worker_files=99)] + [HELD] * 9
    assert medians_of_thirds(once) == [HELD] * 3


def test_a_report_tells_what_each_server_held() -> None:
    part = Report(before=HELD, after=replace(HELD, pages=11), held=[HELD] * 3)
    text = "\n".join(Report.of(1, [part]).lines())
    assert "at rest    pages 10 -> 11, active pages 1 -> 1" in text
    assert "by thirds  pages 10 / 10 / 10" in text
    assert "of 3 times under load" in text


def whole(held: list[Holdings], after: Holdings = HELD, seconds: float = SETTLED_S) -> Report:
    return Report.of(1, [Report(seconds=seconds, before=HELD, after=after, held=held)])


def test_a_server_that_goes_on_growing_fails_the_run() -> None:
    leaking = [replace(HELD, front_end_mib=100.0 + index / 10) for index in range(40)]
    report = whole(leaking)
    assert report.grown == ["front end mib under load: 101.9 -> 103.3"]
    assert not report.is_good
    assert "grown      front end mib under load: 101.9 -> 103.3" in report.lines()


def test_what_a_server_grows_to_when_it_is_first_used_is_no_leak() -> None:
    warm = [replace(HELD, front_end_mib=100.0 + index) for index in range(10)]
    assert not whole(warm + [replace(HELD, front_end_mib=110.5)] * 30).grown


def test_the_memory_of_a_short_run_is_told_and_not_judged() -> None:
    growing = [replace(HELD, front_end_mib=100.0 + index) for index in range(20)]
    assert not whole(growing, seconds=60.0).grown


@pytest.mark.parametrize("thing", ["pages", "active_pages", "worker_files", "front_end_files"])
def test_what_is_not_given_back_at_rest_fails_a_run_of_any_length(thing: str) -> None:
    after = replace(HELD, **{thing: getattr(HELD, thing) + 5})
    assert [text.partition(":")[0] for text in whole([HELD] * 3, after, 1.0).grown] == [
        f"{thing.replace('_', ' ')} at rest"
    ]
