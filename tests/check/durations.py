"""The seconds of each test file, recorded by `make test RECORD=1` and read by `make check`."""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

RECORDED = Path(__file__).with_name("durations.json")
UNKNOWN_S = 2.0  # of a file that is not recorded


class Recorder:
    """The plugin that adds up the reports of a session, and writes the record at its end."""

    def __init__(self, path: Path = RECORDED) -> None:
        self._path = path
        self._seconds = Counter[str]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the setup, the call or the end of a test."""
        file, *_ = report.nodeid.split("::")  # `report.location` of a state machine's test is a file of Hypothesis
        self._seconds[file] += report.duration

    def pytest_sessionfinish(self) -> None:
        """Write a line for each file, so that two records can be compared."""
        rows = {file: round(seconds, 1) for file, seconds in sorted(self._seconds.items())}
        self._path.write_text(json.dumps(rows, indent=0) + "\n")


def recorded(path: Path = RECORDED) -> Mapping[str, float]:
    """Return the seconds by file."""
    seconds: dict[str, float] = json.loads(path.read_text())
    return seconds
