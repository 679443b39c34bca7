from pathlib import Path

import pytest
from numaserve.server.common.cpu_times import CpuTimes, cpu_times


def test_the_times_of_all_threads_of_a_process_are_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("numaserve.server.common.cpu_times._PROC", tmp_path)
    for thread, text in enumerate(("70 7 3\n", "200 20 1\n")):
        (tmp_path / "12" / "task" / str(thread)).mkdir(parents=True)
        (tmp_path / "12" / "task" / str(thread) / "schedstat").write_text(text)
    (tmp_path / "12" / "task" / "ending").mkdir()
    assert cpu_times(12) == CpuTimes(270, 27)
    assert cpu_times(13) == CpuTimes()
