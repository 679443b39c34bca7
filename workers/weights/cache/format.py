"""A file of packed weights.

    preamble, 4096 bytes    written last; all zero until the file is complete
    the matrices' bytes     in their memory layout, each from a multiple of 4096
    table                   msgpack: the key, the kinds of the matrices, the checksums of their bytes

The preamble's digest covers the preamble and the table; the table's checksums cover the bytes. The file does not store
where a matrix begins. That follows from the sizes, which are compared with those of the matrices in memory before any
byte is read into them.
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

    name: str  # of the file: a renamed file is not taken for another
    model: str  # path, for people who inspect the cache
    matrices: list[StoredMatrix]
    checksums: list[int]  # of the units of each matrix, matrix after matrix


def describe(matrices: Sequence[PackedMatrix]) -> list[StoredMatrix]:
    """Return the entries of `matrices` in a table."""
    return [StoredMatrix(each.n, each.k, each.format, each.group, each.nbytes) for each in matrices]


def offsets_of(matrices: Sequence[PackedMatrix]) -> tuple[list[int], int]:
    """Return the offset of each matrix's bytes in a file, and that of its table."""
    room = (-(-matrix.nbytes // ALIGNMENT) * ALIGNMENT for matrix in matrices)
    *offsets, end = itertools.accumulate(room, initial=ALIGNMENT)
    return offsets, end


def encode_table(table: Table, offset: int) -> tuple[bytes, bytes]:
    """Return the preamble of a file whose table is at `offset`, and the table."""
    body = msgspec.msgpack.encode(table)
    return _PREAMBLE.pack(_MAGIC, offset, len(body), _digest(offset, body)), body


def read_table(fd: int) -> Table:
    """Return the table of an open file. Raises `CacheError` for an incomplete or damaged file, and `OSError`."""
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
