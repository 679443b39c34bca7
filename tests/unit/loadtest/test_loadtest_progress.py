"""The progress bar of a load test, on a standard error that is a terminal."""

import io
import sys

import pytest
from numaserve.server.loadtest.report.progress import Progress
from numaserve.server.loadtest.workload.requests import Outcome


class Terminal(io.StringIO):
    """A standard error that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_the_bar_counts_done_and_failed_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    with Progress("warm-up", 3) as progress:
        begun = shown.getvalue()
        progress.done(Outcome(10, error="HTTP 500"))
        progress.done(Outcome(10))
    assert "warm-up" in begun
    assert "0/3" in begun
    assert "0 failed" in begun
    ended = shown.getvalue().removeprefix(begun)
    assert "2/3" in ended
    assert "1 failed" in ended
