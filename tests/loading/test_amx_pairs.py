"""Kernels of two trees that are measured alternately."""

import sys
from pathlib import Path

import pytest
from numaserve.kernels import Team
from numaserve.workers.bench.programs import FORMATS
from numaserve.workers.bench.shapes import SHAPES, Shape

from tests.bench import amx_pairs, amx_rounds
from tests.bench.amx_pairs import Compared, processes, rounds_until, same_bytes
from tests.bench.goals import SMALL
from tests.support.alternating import quartiles, ratios

# A process of a tree without its kernels: the first case takes two microseconds, the second is missing, and the third
# ends the process.
FAKE = """
import json, sys
for line in sys.stdin:
    ((what, number),) = json.loads(line).items()
    if number == 2:
        sys.exit(3)
    answer = {"missing": "none"} if number else {"checksum": "a"} if what == "prepare" else {"times": {"gate_up": 2.0}}
    print(json.dumps(answer), flush=True)
"""


def test_trees_alternate_and_the_first_round_is_not_counted() -> None:
    order: list[str] = []
    times = {"this": iter([9.0, 1.0, 3.0]), "base": iter([1.0, 2.0, 2.0])}

    def figures(tree: str) -> dict[str, float]:
        order.append(tree)
        return {"step": next(times[tree])}

    assert ratios("this", "base", range(-1, 2), figures) == {"step": [0.5, 1.5]}
    assert order == ["this", "base", "base", "this", "this", "base"]
    assert quartiles([3.0, 1.0, 2.0]) == (1.5, 2.0, 2.5)


def test_rounds_end_with_the_time_but_there_are_some() -> None:
    assert list(rounds_until(0.0)) == [-1, 0, 1]
    assert len(list(rounds_until(float("inf")))) == 8


def test_results_that_differ_or_are_not_compared_are_told_apart() -> None:
    assert [same_bytes(*each) for each in (("a", "a"), ("a", "b"), (None, "a"))] == [
        "equal",
        "different",
        "not compared",
    ]


def test_rows_that_both_trees_have_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amx_pairs, "_TREE", (sys.executable, "-c", FAKE))
    compared, missing = Compared(), Compared()
    for number in range(2):
        with processes((tmp_path, tmp_path), tmp_path / f"pass-{number}") as pair:
            compared.add(pair, 0, until=0.0)
            missing.add(pair, 1, until=0.0)
            with pytest.raises(RuntimeError, match="has ended with status 3"):
                missing.add(pair, 2, until=0.0)
    (row,) = compared.rows("mlp", "main")
    assert (row.table, row.what) == ("this tree / main", {"case": "mlp", "row": "gate_up"})
    assert row.figures == {"ratio": 1.0, "low": 1.0, "high": 1.0, "rounds": 4, "bytes": "equal"}
    assert list(missing.rows("share", "main")) == []


def test_a_row_has_the_median_of_all_rounds_and_the_spread_of_passes() -> None:
    compared = Compared({"down": [[1.0, 1.2, 1.1], [0.9, 0.8, 0.7]]}, "different")
    (row,) = compared.rows("mlp", "main")
    assert row.figures == {"ratio": 0.95, "low": 0.8, "high": 1.1, "rounds": 6, "bytes": "different"}


def test_checksums_see_every_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SHAPES, SMALL, Shape(64, 1, 1, 1, 64, 32, 64, tied=True))
    team, of = Team([-1]), {}
    for part in ("qkv", "o", "mlp"):
        of[part] = amx_rounds._checksum_of_products(team, part=part, format=FORMATS[0], m=40)
        assert of[part] == amx_rounds._checksum_of_products(team, part=part, format=FORMATS[0], m=40)
    assert len(set(of.values())) == 3
