from dataclasses import replace
from pathlib import Path

import pytest

from tests.check.choice import COLLECTION_S, choice, chosen
from tests.check.nearest import near, nearest
from tests.mutants.run import Tree
from tests.mutants.table import Mutant

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("file", "first"),
    [
        ("server/scheduler/radix_tree.py", "tests/unit/scheduler/test_radix_tree.py"),
        ("server/speculation/suffix.py", "tests/unit/speculation/test_suffix.py"),
        ("kernels/gemm/gemm.inl", "tests/kernels/test_gemm"),
        ("server/http/body/pieces.py", "tests/api/test_long_bodies.py"),
        ("shm_comm/include/numaserve_ring_collectives.h", "tests/shm_comm/test_ring_collectives.py"),
        ("docs/plan.md", "tests/documentation/"),
        ("tests/unit/support/test_nearest.py", "tests/unit/support/test_nearest.py"),
        ("tests/check/nearest.py", "tests/unit/support/test_nearest.py"),
        ("tests/mutants/run.py", "tests/unit/support/test_mutants.py"),
        ("tests/unit/scheduler/scheduler_simulation.py", "tests/unit/scheduler/"),
    ],
)
def test_the_first_test_is_the_one_that_one_would_run(file: str, first: str) -> None:
    groups = [*near(ROOT, file)]
    assert groups[0][0].startswith(first), groups[0]
    assert len({each for group in groups for each in group}) == sum(map(len, groups))


def test_in_the_end_every_test_file_is_run() -> None:
    every = {str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")}
    groups = [*nearest(ROOT, "server/http/errors.py")]
    assert {each for group in groups for each in group} == every


def test_what_fits_the_time_is_run_and_the_rest_is_named() -> None:
    groups = [["a", "b"], ["a", "c"], ["d"]]
    taken, left_out = chosen(groups, 5.0, {"a": 4.0, "b": 20.0, "c": 5.0})
    assert (taken, left_out) == (["a", "c"], ["b", "d"])


def test_the_shortest_files_of_a_group_come_first() -> None:
    groups = [["long", "short"], ["far"]]
    taken, left_out = chosen(groups, 5.0, {"long": 8.0, "short": 3.0, "far": 1.0})
    assert (taken, left_out) == (["short", "far"], ["long"])


def test_the_time_that_collecting_takes_is_counted() -> None:
    files = [str(number) for number in range(1000)]
    taken, _ = chosen([files], 10.0, dict.fromkeys(files, 0.0))
    assert len(taken) == 10.0 / COLLECTION_S


def test_a_mutant_meets_its_killer_and_then_the_nearest_tests() -> None:
    mutant = Mutant("server/scheduler/policy.py", "", "", killer="tests/x.py::test_y")
    taken, left_out = choice(ROOT, [mutant.file])
    assert taken and left_out
    assert [*Tree(ROOT, ROOT, check_only=True).parts(mutant)] == [[mutant.killer], taken]
    assert [*Tree(ROOT, ROOT).parts(replace(mutant, killer=""))] == [*nearest(ROOT, mutant.file)]
