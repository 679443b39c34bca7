"""The format of the index: a header, then cells of equal size, in the order of the changes.

    header   4096 bytes: magic, length and CRC of a body in msgpack, the body, zeros
    cells    104 bytes each, in which numbers are little-endian

A cell has its own CRC, over its number and a nonce of the file too. So a damaged cell is skipped without harm to the
next one, and no cell of an earlier file is taken for one of this file: a file system may show old blocks after a power
failure. Cells of different lengths were rejected: after a damaged length, the next cell could not be found.

The name of a cache group has a cell of its own, and other cells name a group by its number.
"""

import struct
import zlib
from typing import NamedTuple

import msgspec

HEADER_BYTES = 4096
_MAGIC = b"nskvindx"
_VERSION = 1
_PREAMBLE = struct.Struct("<8sII")  # magic, length and CRC of the body
_CELL = struct.Struct("<IBB2xIIqI76s")  # CRC of the rest, and the fields of `Cell`
CELL_BYTES = _CELL.size
_CRC_BYTES = 4
_DIGEST_BYTES = 32
_NO_PARENT = bytes(_DIGEST_BYTES)
GROUP_BYTES = 76  # of the longest name

ADDED, DROPPED, USED, CLEARED, GROUP = range(1, 6)


class HeaderError(Exception):
    """A file that is no index, or one that is damaged; the message says why."""


class Header(msgspec.Struct, frozen=True, array_like=True):
    """The header of an index."""

    facts: dict[str, bytes]  # digests of all that the bits of the records depend on, by name
    model: str  # for people who inspect the folder
    page_bytes: list[int]  # of a record, by rank
    anchor_bytes: list[int]  # of a record, by rank; 0: there are none
    nonce: bytes
    version: int = _VERSION


class Cell(NamedTuple):
    """A cell without its CRC. Each kind of change uses some of the fields."""

    what: int
    kind: int = 0  # of record
    slot: int = 0
    depth: int = 0
    at: int = 0  # unix seconds
    group: int = 0
    payload: bytes = b""  # the digests of a node and of its parent, or the name of a group

    @property
    def digest(self) -> bytes:
        """The digest of the node."""
        return self.payload[:_DIGEST_BYTES]

    @property
    def parent(self) -> bytes:
        """The digest of the node's parent; b"" below a root."""
        parent = self.payload[_DIGEST_BYTES : 2 * _DIGEST_BYTES]
        return b"" if parent == _NO_PARENT else parent

    @property
    def name(self) -> str:
        """The name of the group."""
        return self.payload.rstrip(b"\0").decode(errors="replace")


def encode_header(header: Header) -> bytes:
    """Return the bytes of a header. Raises `ValueError` for one that is too long."""
    body = msgspec.msgpack.encode(header)
    if _PREAMBLE.size + len(body) > HEADER_BYTES:
        raise ValueError("the header of the index is too long")
    return (_PREAMBLE.pack(_MAGIC, len(body), zlib.crc32(body)) + body).ljust(HEADER_BYTES, b"\0")


def decode_header(data: bytes) -> Header:
    """Return the header at the beginning of a file. Raises `HeaderError`."""
    if len(data) < HEADER_BYTES:
        raise HeaderError("the index is truncated")
    magic, length, crc = _PREAMBLE.unpack_from(data)
    body = data[_PREAMBLE.size : _PREAMBLE.size + length]
    if magic != _MAGIC or zlib.crc32(body) != crc or any(data[_PREAMBLE.size + length :]):
        raise HeaderError("the header of the index is damaged")
    try:
        header = msgspec.msgpack.decode(body, type=Header)
    except msgspec.MsgspecError as error:
        raise HeaderError(f"the header of the index is not valid ({error})") from error
    if header.version != _VERSION:
        raise HeaderError(f"the index has format {header.version}; this version reads format {_VERSION}")
    return header


def encode_cell(cell: Cell, number: int, nonce: bytes) -> bytes:
    """Return the bytes of the cell with that number in its file."""
    data = _CELL.pack(0, *cell)
    return _crc(data, number, nonce).to_bytes(_CRC_BYTES, "little") + data[_CRC_BYTES:]


def decode_cell(data: bytes, number: int, nonce: bytes) -> Cell | None:
    """Return the cell with that number; None: it is damaged."""
    crc, *fields = _CELL.unpack(data)
    return Cell(*fields) if crc == _crc(data, number, nonce) else None


def _crc(data: bytes, number: int, nonce: bytes) -> int:
    return zlib.crc32(data[_CRC_BYTES:], zlib.crc32(nonce + number.to_bytes(8, "little")))
