"""Names of the rows that a program is given, and of those that it keeps."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from numaserve.workers.program.buffers import Buffer
from numaserve.workers.program.layout import lifetimes
from numaserve.workers.program.outside import OutsideRows, outside_rows
from numaserve.workers.program.recording.builder import ProgramBuilder
from numaserve.workers.program.setup import RankShape

from tests.support.recorded_programs import ALONE, EPS, HIDDEN, VOCAB, VectorShape


def recorded() -> ProgramBuilder:
    """Two matrices that are given, and the norm of each, kept before more is computed."""
    b = ALONE.builder(RankShape(HIDDEN, [0, VOCAB]))
    for name, columns in (("first", 32), ("second", 96)):
        x = b.given(name, columns)
        b.keep(name, b.rms_norm(x, VectorShape(columns), EPS))
        b.multiply(x, x)
    return b


def memory_of(b: ProgramBuilder) -> OutsideRows:
    def rows(buffer: Buffer, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        return np.zeros((buffer.rows, buffer.cols), dtype)

    return outside_rows(b.operations, rows)


def test_rows_are_found_by_their_names() -> None:
    outside = memory_of(recorded())
    for name, columns in (("first", 32), ("second", 96)):
        given, kept = outside.given(name), outside.kept(name)
        assert (given.shape[1], given.dtype) == (columns, np.float32)
        assert (kept.shape[1], kept.dtype) == (columns, np.uint16)


def test_a_name_for_two_matrices_is_refused() -> None:
    b = recorded()
    b.given("first", 8)
    with pytest.raises(ValueError, match="is given two matrices of rows named 'first'"):
        memory_of(b)
    b = recorded()
    b.keep("second", b.given("third", 8))
    with pytest.raises(ValueError, match="keeps two matrices of rows named 'second'"):
        memory_of(b)


def test_a_name_that_a_program_does_not_have_is_refused() -> None:
    outside = memory_of(recorded())
    with pytest.raises(ValueError, match="is given no rows named 'third'; it is given 'second', 'first'"):
        outside.given("third")
    with pytest.raises(ValueError, match="keeps no rows named 'third'; it keeps 'first', 'second'"):
        outside.kept("third")


def test_rows_that_change_after_they_are_kept_are_refused() -> None:
    b = recorded()
    x = b.given("third", 8)
    b.keep("third", x)
    b.divided_norm(x, [VectorShape(8)], counted=(8,), columns=(8,), eps=EPS)
    with pytest.raises(ValueError, match="the rows named 'third' change after they are kept"):
        memory_of(b)


def test_the_memory_of_kept_rows_is_theirs_until_the_step_ends() -> None:
    b = recorded()
    lives = lifetimes(b.operations)
    kept = [each.buffers[0] for each in b.operations if each.reads and not each.writes]
    assert [lives[buffer].last for buffer in kept] == [len(b.operations) - 1] * 2
