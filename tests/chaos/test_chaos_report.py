"""What is told of a run."""

from dataclasses import replace

from tests.chaos.report import Report, medians_of_thirds
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
