import errno
from pathlib import Path

import numpy as np
import pytest
from numaserve.kernels import CHECKSUM_UNIT, PackedMatrix, Team, checksum, read_packed


def random_bytes(count: int) -> memoryview:
    return memoryview(np.random.default_rng(count).integers(0, 256, count, dtype=np.uint8))


@pytest.mark.parametrize("size", [1, 31, 32, 127, 128, 129, 1000])
def test_every_bit_and_the_length_count(size: int) -> None:
    data = bytearray(random_bytes(size))
    whole = checksum(memoryview(data))
    assert checksum(memoryview(data + b"\0")) != whole
    for bit in range(8 * size):
        data[bit // 8] ^= 1 << bit % 8
        assert checksum(memoryview(data)) != whole
        data[bit // 8] ^= 1 << bit % 8
    assert checksum(memoryview(data)) == whole


def test_bytes_of_zero_are_not_all_alike() -> None:
    assert len({checksum(memoryview(bytes(size))) for size in range(300)}) == 300


@pytest.mark.parametrize("length", [1, 8, 32, 128, 4096])
def test_where_bytes_are_counts(length: int) -> None:
    data = bytearray(random_bytes(8 * 4096))
    whole = checksum(memoryview(data))
    data[:length], data[-length:] = data[-length:], data[:length]
    assert checksum(memoryview(data)) != whole


def test_a_buffer_is_the_memory_of_its_matrix_and_keeps_it_alive() -> None:
    matrix = PackedMatrix(40, 70)
    buffer = matrix.buffer()
    assert buffer.nbytes == matrix.nbytes
    np.asarray(buffer).view(np.uint16)[:] = 0x3F80
    np.testing.assert_array_equal(matrix.to_numpy(), np.ones((40, 70), np.float32))
    del matrix
    assert bytes(buffer[:2]) == b"\x80\x3f"


@pytest.mark.parametrize("threads", [1, 3])
def test_matrices_get_the_bytes_at_their_offsets_and_the_sums_of_their_units(threads: int, tmp_path: Path) -> None:
    # One of several units, whose last is not whole; an empty one; one that is in the file twice.
    shapes, offsets = [(3000, 1500), (0, 64), (32, 32), (32, 32)], [5, 0, 12_000_000, 12_000_000]
    content = random_bytes(12_100_000)
    (tmp_path / "file").write_bytes(content)
    matrices = [PackedMatrix(*shape) for shape in shapes]
    with (tmp_path / "file").open("rb") as file:
        sums = read_packed(Team([-1] * threads), file.fileno(), matrices, offsets)
    expected = [content[at : at + matrix.nbytes] for at, matrix in zip(offsets, matrices, strict=True)]
    assert [matrix.buffer() == data for matrix, data in zip(matrices, expected, strict=True)] == [True] * 4
    units = [data[at : at + CHECKSUM_UNIT] for data in expected for at in range(0, len(data), CHECKSUM_UNIT)]
    assert len(units) == 5
    assert sums == [checksum(unit) for unit in units]


def test_a_file_that_ends_too_early_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(4096))
    team = Team([-1, -1])
    with (tmp_path / "file").open("rb") as file:
        for offset in (1, 4096, 2**62):
            with pytest.raises(OSError, match="Input/output error") as caught:
                read_packed(team, file.fileno(), [PackedMatrix(32, 64)], [offset])
            assert caught.value.errno == errno.EIO
        descriptor = file.fileno()
    with pytest.raises(OSError, match="Bad file descriptor"):
        read_packed(team, descriptor, [PackedMatrix(32, 64)], [0])
    with pytest.raises(ValueError, match="the number of offsets must equal the number of matrices"):
        read_packed(team, descriptor, [PackedMatrix(32, 64)], [])
