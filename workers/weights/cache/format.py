"""A file of packed weights.

    preamble, 4096 bytes    written last; all zero until the file is complete
    the matrices' bytes     as they lie in memory, each from a multiple of 4096
    table                   msgpack: the key, what the matrices are, the checksums of their bytes

The preamble's digest covers itself and the table, the table's checksums cover the bytes. Nothing in the file says where
a matrix begins: that follows from the sizes, which are compared with those of the matrices in memory before any byte
goes there.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from numaserve.workers.weights.cache.errors import CacheError

if TYPE_CHECKING:
    from numaserve.kernels import PackedMatrix

ALIGNMENT = 4096
_MAGIC = b"NUMASRV\x02"
_PREAMBLE = struct.Struct("<8sQQ32s")  # magic, offset and length of the table, digest
_MAX_TABLE_BYTES = 1 << 28


class StoredMatrix(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The shape and format of a matrix in a file."""

    n: int
    k: int
    format: str
    group: int
    nbytes: int


class Table(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A file's table of contents."""

    name: str  # of the file: one that was renamed is not taken for another
    model: str  # path, for those who look at what is there
    matrices: list[StoredMatrix]
    checksums: list[int]  # of the units of each matrix, matrix after matrix


def describe(matrices: Sequence[PackedMatrix]) -> list[StoredMatrix]:
    """The entries of `matrices` in a table."""
    return [StoredMatrix(each.n, each.k, each.format, each.group, each.nbytes) for each in matrices]


def offsets_of(matrices: Sequence[PackedMatrix]) -> tuple[list[int], int]:
    """The offset of each matrix's bytes in a file, and that of its table."""
    room = (-(-matrix.nbytes // ALIGNMENT) * ALIGNMENT for matrix in matrices)
    *offsets, end = itertools.accumulate(room, initial=ALIGNMENT)
    return offsets, end


def encode_table(table: Table, offset: int) -> tuple[bytes, bytes]:
    """The preamble of a file whose table is at `offset`, and the table."""
    body = msgspec.msgpack.encode(table)
    return _PREAMBLE.pack(_MAGIC, offset, len(body), _digest(offset, body)), body


def read_table(fd: int) -> Table:
    """The table of an open file. Raises `CacheError` for one that is not complete or is damaged, `OSError`."""
    head = os.pread(fd, _PREAMBLE.size, 0)
    if len(head) != _PREAMBLE.size:
        raise CacheError("the file is truncated")
    magic, offset, length, digest = _PREAMBLE.unpack(head)
    if magic != _MAGIC:
        raise CacheError("the file is incomplete or not a file of packed weights")
    if length > _MAX_TABLE_BYTES or os.fstat(fd).st_size != offset + length:
        raise CacheError("the length of the file is wrong")
    body = os.pread(fd, length, offset)
    if _digest(offset, body) != digest:
        raise CacheError("the table of the packed weights is damaged")
    try:
        return msgspec.msgpack.decode(body, type=Table)
    except msgspec.MsgspecError as error:
        raise CacheError(f"the table of the packed weights is not valid ({error})") from error


def _digest(offset: int, body: bytes) -> bytes:
    return hashlib.blake2b(_MAGIC + offset.to_bytes(8, "little") + body, digest_size=32).digest()
