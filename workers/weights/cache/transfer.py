"""Transfer of matrices from and to a file of the cache."""

import errno
import os
from collections.abc import Callable, Sequence

from numaserve.kernels import CHECKSUM_UNIT, PackedMatrix, Team, checksum, read_packed
from numaserve.workers.weights.cache.errors import CacheError
from numaserve.workers.weights.cache.folder import CacheFolder, CacheKey
from numaserve.workers.weights.cache.format import Table, describe, encode_table, offsets_of, read_table

_BATCH_BYTES = 1 << 28  # between two reports


def fill(matrices: Sequence[PackedMatrix], fd: int, key: CacheKey, team: Team, report: Callable[[int], None]) -> None:
    """Read all bytes of `matrices` on the team's threads; `report` gets the bytes so far.

    Raises `CacheError` when the file is not the expected one; the contents of the matrices are then undefined.
    """
    try:
        table = read_table(fd)
        if table.name != key.file_name or table.matrices != describe(matrices):
            raise CacheError("the file holds the packed weights of another model or configuration")
        offsets, _ = offsets_of(matrices)
        sums: list[int] = []
        done = 0
        for first, end in _batches(matrices):
            sums += read_packed(team, fd, matrices[first:end], offsets[first:end])
            if sums != table.checksums[: len(sums)]:
                raise CacheError("the packed weights are damaged")
            done += sum(matrix.nbytes for matrix in matrices[first:end])
            report(done)
        if len(sums) != len(table.checksums):
            raise CacheError("the table of the packed weights has the wrong number of checksums")
    except OSError as error:
        raise CacheError(f"the file cannot be read ({error.strerror})") from error


def save(
    matrices: Sequence[PackedMatrix],
    folder: CacheFolder,
    key: CacheKey,
    *,
    model: str,
    group_bytes: int,
    limit: int,
    between: Callable[[], None] = lambda: None,
) -> int:
    """Write `matrices` under `key`, and return the file's bytes. `between` is called every few milliseconds, and may
    raise.

    `model` is for people who inspect the cache. Raises `CacheError`. After any error, `key` has only its previous file,
    if there was one.
    """
    offsets, end = offsets_of(matrices)
    with folder.new_file(key, end, group_bytes, limit) as fd:
        sums: list[int] = []
        for matrix, offset in zip(matrices, offsets, strict=True):
            data = matrix.buffer()
            for at in range(0, len(data), CHECKSUM_UNIT):
                between()
                unit = data[at : at + CHECKSUM_UNIT]
                sums.append(checksum(unit))
                _write(fd, unit, offset + at)
        preamble, body = encode_table(Table(key.file_name, model, describe(matrices), sums), end)
        _write(fd, memoryview(body), end)
        # Not forced to disk: bytes that a power failure loses are detected when the file is read.
        _write(fd, memoryview(preamble), 0)
    return end + len(body)


def _batches(matrices: Sequence[PackedMatrix]) -> list[tuple[int, int]]:
    """Return ranges of matrices that are read at once: many, because small ones alone do not occupy all threads."""
    batches: list[tuple[int, int]] = []
    first = nbytes = 0
    for index, matrix in enumerate(matrices):
        nbytes += matrix.nbytes
        if nbytes >= _BATCH_BYTES or index + 1 == len(matrices):
            batches.append((first, index + 1))
            first, nbytes = index + 1, 0
    return batches


def _write(fd: int, data: memoryview, offset: int) -> None:
    while data:
        written = os.pwrite(fd, data, offset)
        if written == 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        data, offset = data[written:], offset + written
