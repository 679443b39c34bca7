from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.pairwise import cross, pairs, pairwise

SIZES = st.lists(st.integers(1, 5), min_size=1, max_size=5)


def is_slow(parameter: object) -> bool:
    return pytest.mark.slow in parameter.marks  # type: ignore[attr-defined]


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
    assert set().union(*(pairs(rows[number]) for number in numbers)) == set().union(*map(pairs, rows))


def test_a_large_cross_takes_few_more_rows_than_its_largest_pair() -> None:
    rows = list(product(range(7), range(6), range(5), range(3), range(2)))
    assert 7 * 6 <= len(pairwise(rows)) <= 50


def test_the_rest_of_a_cross_is_slow_and_nothing_is_left_out() -> None:
    parameters = cross("abc", range(4), (True, False))
    assert [parameter.values for parameter in parameters] == list(product("abc", range(4), (True, False)))
    fast = [parameter.values for parameter in parameters if not is_slow(parameter)]
    assert 12 <= len(fast) < 24
    assert {values[:2] for values in fast} == set(product("abc", range(4)))
    assert {values[1:] for values in fast} == set(product(range(4), (True, False)))


def test_rows_that_cannot_be_are_left_out_and_their_pairs_not_looked_for() -> None:
    parameters = cross(range(4), range(4), range(2), where=lambda one, other, _: one < other)
    assert all(one < other for one, other, _ in (parameter.values for parameter in parameters))
    assert {parameter.values[:2] for parameter in parameters if not is_slow(parameter)} == {
        (one, other) for one, other in product(range(4), range(4)) if one < other
    }


def test_a_value_keeps_its_marks_and_need_not_be_hashable() -> None:
    marked = pytest.param({"of": "a value"}, marks=pytest.mark.amx)
    parameters = cross([marked, {}], [[1]])
    assert [parameter.values for parameter in parameters] == [({"of": "a value"}, [1]), ({}, [1])]
    assert [pytest.mark.amx in parameter.marks for parameter in parameters] == [True, False]
    assert not any(map(is_slow, parameters))
