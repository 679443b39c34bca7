from itertools import combinations, product
from math import prod
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.pairwise import Row, fast_rows, mark_the_rest_slow, pairwise

# Few rows each: the time to choose grows with their square. A cross of many rows has a test of its own.
SIZES = st.lists(st.integers(1, 5), min_size=1, max_size=5).filter(lambda sizes: prod(sizes) <= 400)


@given(sizes=SIZES)
def test_every_pair_of_a_cross_is_in_the_rows_that_are_taken(sizes: list[int]) -> None:
    rows = list(product(*map(range, sizes)))
    taken = [rows[number] for number in pairwise(rows)]
    for first, one in enumerate(sizes):
        assert {row[first] for row in taken} == set(range(one))
        for second, other in enumerate(sizes[:first]):
            assert {(row[first], row[second]) for row in taken} == set(product(range(one), range(other)))


@given(rows=st.lists(st.tuples(*[st.integers(0, 3)] * 4), min_size=1, max_size=60))
def test_of_any_rows_the_pairs_that_are_in_them_are_taken_and_no_others(rows: list[tuple[int, ...]]) -> None:
    numbers = pairwise(rows)
    assert numbers == sorted(set(numbers))
    taken = [rows[number] for number in numbers]
    for columns in combinations(range(4), 2):
        found, wanted = ({tuple(row[i] for i in columns) for row in each} for each in (taken, rows))
        assert found == wanted


def test_a_large_cross_takes_few_more_rows_than_its_largest_pair() -> None:
    rows = list(product(range(7), range(6), range(5), range(3), range(2)))
    assert 7 * 6 <= len(pairwise(rows)) <= 50


@given(sizes=st.lists(st.integers(1, 4), min_size=2, max_size=4).filter(lambda sizes: prod(sizes) <= 120))
def test_a_spread_value_is_with_each_row_of_the_others_and_as_often_as_any(sizes: list[int]) -> None:
    *crossed, number = (range(size) for size in sizes)
    rows = [Row(tuple(map(str, row)), (str(value),), f"{row}{value}") for *row, value in product(*crossed, number)]
    taken = [rows[each] for each in fast_rows(rows)]
    assert len({row.crossed for row in taken}) == len(taken) == len(pairwise(product(*crossed)))
    often = [sum(row.spread == (str(value),) for row in taken) for value in number]
    assert max(often) - min(often) <= 1 or len(crossed) > 1


def test_spread_values_meet_each_other() -> None:
    rows = [Row((name,), (isa, tp), name + isa + tp) for name, isa, tp in product("abcdefghijkl", "wxyz", "123")]
    assert {rows[number].spread for number in fast_rows(rows)} == set(product("wxyz", "123"))


def test_files_begin_with_different_numbers() -> None:
    first = {min(fast_rows([Row((name,), (tp,), name + tp) for tp in "123"])) for name in "abcdefghijklmnop"}
    assert first == {0, 1, 2}


CROSS = """
import pytest

@pytest.fixture(params=["x", "y"])
def fixture(request):
    pass

@pytest.mark.parametrize("one", ["a-b", "a", pytest.param("b", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("two", "three"), [(1, 1), (1, 2), (2, 1), (2, 2)])
def test_crossed(fixture, one, two, three):
    pass

@pytest.mark.parametrize("case", ["1*1", "1*2", "2*1"])
@pytest.mark.parametrize("one", [1, 2])
def test_with_chosen_rows(fixture, case, one):
    pass

@pytest.mark.parametrize("one", range(10))
def test_with_a_fixture(fixture, one):
    pass

@pytest.mark.spread("isa")
@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize(("name", "size"), [("a", 1), ("b", 1), ("c", 2)], ids=["1", "2", "3"])
@pytest.mark.parametrize("isa", ["amx", "avx2"])
def test_with_ranks(isa, name, size, tp):
    pass

@pytest.mark.parametrize(("tp", "threads"), [(1, 1), (2, 3)])
def test_with_chosen_ranks(tp, threads):
    pass

def test_alone():
    pass
"""


class Collected:
    """Of each test, the ids of those that are not slow."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        mark_the_rest_slow(items)
        self.number = len(items)
        self.fast = [item.name for item in items if not item.get_closest_marker("slow")]

    def of(self, name: str) -> list[str]:
        return [test for test in self.fast if test.partition("[")[0] == name]


def test_the_rest_of_a_test_s_cross_is_slow_and_nothing_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "test_file.py"
    file.write_text(CROSS)
    options = ["-q", "--collect-only", "-p", "no:cacheprovider", "-o", "markers=slow\nspread", str(file)]
    pytest.main(options, plugins=[collected := Collected()])
    assert collected.number == 2 * 3 * 4 + 2 * 3 * 2 + 2 * 10 + 2 * 3 * 2 + 2 + 1
    assert len(collected.of("test_with_a_fixture")) == 2 * 10
    assert len(collected.of("test_alone")) == 1
    assert len(collected.of("test_with_chosen_rows")) <= 6
    assert len(collected.of("test_with_chosen_ranks")) == 2
    with_ranks = [name.partition("[")[2].rstrip("]").split("-") for name in collected.of("test_with_ranks")]
    assert [name for _, name, _ in with_ranks] == ["1", "2", "3"]
    assert len({(isa, tp) for isa, _, tp in with_ranks}) == 3
    crossed = collected.of("test_crossed")
    assert len(crossed) == 2 * 4
    for one, other in product(["a-b", "a"], ["1-1", "1-2", "2-1", "2-2"]):
        assert sum(name.endswith((f"[x-{other}-{one}]", f"[y-{other}-{one}]")) for name in crossed) == 1
    for fixture, one in product("xy", ["a-b", "a"]):
        assert any(name.startswith(f"test_crossed[{fixture}-") and name.endswith(f"-{one}]") for name in crossed)
