"""The comparison of two trees' speed, over figures that are given."""

from pathlib import Path

import pytest

from tests.support.golden import speed

BEFORE, AFTER = Path("before"), Path("after")


@pytest.mark.parametrize(("count", "first"), [(9, 1), (12, 2), (15, 3), (25, 7)])
def test_the_interval_leaves_out_as_many_at_each_end_as_tables_say(count: int, first: int) -> None:
    # Tables of the sign test for 95 %: of 9 the second and the eighth, of 12 the third and the tenth, and so on.
    assert speed.interval(list(range(count))[::-1]) == (first, count - 1 - first)


@pytest.mark.parametrize(("slower", "within"), [(1.009, True), (1.02, False)])
def test_a_median_above_its_limit_is_told(
    slower: float, within: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Path] = []

    def measure(side: Path, name: str, model: str, only: str) -> speed.Figures:
        asked.append(side)
        return {"decode, median of a run": 10.0 * (slower if side == AFTER else 1.0)}

    monkeypatch.setattr(speed, "measure", measure)
    assert speed.compare(BEFORE, AFTER, "smollm2", "demo", 9, "steps") is within
    assert asked[:4] == [BEFORE, AFTER, AFTER, BEFORE]
    assert ("within" if within else "ABOVE") in capsys.readouterr().out
