"""A damaged file is found out, whatever is wrong with it."""

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from cache_weights import contents, empty_matrices, key, random_matrices, read, write
from numaserve.kernels import PackedMatrix, Team
from numaserve.workers.weights.cache.errors import CacheError
from numaserve.workers.weights.cache.folder import CacheFolder
from numaserve.workers.weights.cache.format import ALIGNMENT, encode_table, offsets_of, read_table
from numaserve.workers.weights.cache.transfer import fill

PREAMBLE_BYTES = 56


@pytest.fixture(scope="module")
def team() -> Team:
    return Team([-1, -1])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write(tmp_path / "packed", key("a"), random_matrices())
    return tmp_path / "packed" / key("a").file_name


def refused(file: Path, team: Team, message: str) -> None:
    with pytest.raises(CacheError, match=message):
        read(file.parent, key("a"), team)


@pytest.mark.parametrize("left", [0, 10, ALIGNMENT, -1, -1000, -ALIGNMENT * 100])
def test_a_file_that_is_cut_off_is_refused(left: int, file: Path, team: Team) -> None:
    data = file.read_bytes()
    file.write_bytes(data[:left])
    refused(file, team, "the file is truncated|the length of the file is wrong")


def test_a_file_that_goes_on_is_refused(file: Path, team: Team) -> None:
    with file.open("ab") as more:
        more.write(b"\0")
    refused(file, team, "the length of the file is wrong")


def test_a_file_without_its_preamble_is_not_complete(file: Path, team: Team) -> None:
    data = file.read_bytes()
    file.write_bytes(bytes(ALIGNMENT) + data[ALIGNMENT:])
    refused(file, team, "the file is incomplete")


def test_any_flipped_bit_is_found(file: Path, team: Team) -> None:
    original = file.read_bytes()
    offsets, table = offsets_of(empty_matrices())
    rng = np.random.default_rng(0)
    chosen = [*range(PREAMBLE_BYTES), *range(table, len(original))]
    for at, matrix in zip(offsets, empty_matrices(), strict=True):
        if matrix.nbytes:
            chosen += [at, at + matrix.nbytes - 1, *(at + rng.integers(0, matrix.nbytes, 20)).tolist()]
    with file.open("r+b", buffering=0) as damaged:
        for at in chosen:
            os.pwrite(damaged.fileno(), bytes([original[at] ^ 1 << int(rng.integers(8))]), at)
            refused(file, team, "damaged|length|incomplete|truncated")
            os.pwrite(damaged.fileno(), original[at : at + 1], at)
    assert read(file.parent, key("a"), team) == contents(random_matrices())


@pytest.mark.parametrize("length", [512, 4096, 1 << 20])
def test_blocks_that_are_zeroed_or_exchanged_are_found(length: int, file: Path, team: Team) -> None:
    original = file.read_bytes()
    offsets, _ = offsets_of(empty_matrices())
    first = slice(offsets[1], offsets[1] + length)
    second = slice(first.stop + length, first.stop + 2 * length)
    zeroed, exchanged = bytearray(original), bytearray(original)
    zeroed[first] = bytes(length)
    exchanged[first], exchanged[second] = original[second], original[first]
    for damaged in (zeroed, exchanged):
        file.write_bytes(damaged)
        refused(file, team, "the packed weights are damaged")


def test_a_file_under_another_name_is_refused(file: Path, team: Team) -> None:
    file.rename(file.with_name(key("b").file_name))
    with pytest.raises(CacheError, match="the file holds the packed weights of another model or configuration"):
        read(file.parent, key("b"), team)


def test_matrices_of_other_shapes_or_formats_are_not_filled(file: Path, team: Team) -> None:
    for changed in ((64, 128, "bf16"), (128, 96, "bf16"), (64, 96, "int8")):
        matrices = empty_matrices()
        matrices[0] = PackedMatrix(*changed)
        for some in (matrices, matrices[:2], [*empty_matrices(), matrices[0]]):
            with CacheFolder(file.parent) as folder:
                fd = folder.open(key("a").file_name)
                assert fd is not None
                other = "the file holds the packed weights of another model or configuration"
                with open(fd, "rb"), pytest.raises(CacheError, match=other):  # noqa: PTH123
                    fill(some, fd, key("a"), team, lambda _: None)


@pytest.mark.parametrize("change", [lambda sums: sums[:-1], lambda sums: [*sums, 0]])
def test_a_table_with_more_or_fewer_checksums_is_refused(
    change: Callable[[list[int]], list[int]], file: Path, team: Team
) -> None:
    with file.open("r+b") as stored:
        table = read_table(stored.fileno())
        _, offset = offsets_of(empty_matrices())
        changed = msgspec.structs.replace(table, checksums=change(table.checksums))
        preamble, body = encode_table(changed, offset)
        stored.truncate(offset)
        os.pwrite(stored.fileno(), body, offset)
        os.pwrite(stored.fileno(), preamble, 0)
    refused(file, team, "damaged|the table of the packed weights has the wrong number of checksums")


def test_a_table_that_is_none_is_refused(file: Path, team: Team) -> None:
    body = b"\xc1 not msgpack"
    for content in (body, msgspec.msgpack.encode(["x", "y", [], "no list"])):
        preamble, _ = encode_table(content, ALIGNMENT)  # type: ignore[arg-type]
        file.write_bytes(preamble.ljust(ALIGNMENT, b"\0") + msgspec.msgpack.encode(content))
        refused(file, team, "the table of the packed weights is not valid")
