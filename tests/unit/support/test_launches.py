import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import launches


def test_launches_are_counted_over_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(launches._COUNTED, "")
    launches.start_counting(tmp_path / "launched")
    launches.count("servers")
    code = "from tests.support.launches import count; count('servers'); count('checkpoints')"
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3], check=True)
    assert launches.counted() == {"rank groups": 0, "servers": 2, "checkpoints": 1}


def test_more_than_the_budget_is_named() -> None:
    numbers = {"servers": 3, "checkpoints": 1}
    assert launches.beyond(numbers, {"servers": 3, "checkpoints": 1}) == []
    (sentence,) = launches.beyond(numbers, {"servers": 2, "checkpoints": 1})
    assert sentence.startswith("launched 3 servers: the budget is 2.")
