"""The format of a record.

    checksum    8 bytes, of all that follows up to the payload's end
    magic       8 bytes
    version     4 bytes, and 4 of padding
    length      8 bytes, of the payload
    digest      32 bytes, of the prefix
    payload
    zeros       up to a multiple of `ALIGNMENT`

Numbers are little-endian. One checksum covers a payload and what it is the payload of: a record with the keys of one
prefix and the values of another must not verify.
"""

import struct

from numaserve.kernels import checksum
from numaserve.workers.interface.protocol import DiskProblem

ALIGNMENT = 4096  # of memory, offsets and lengths in direct I/O, on every common file system
DIGEST_BYTES = 32
_MAGIC, _VERSION = b"nskvdisk", 1
_HEADER = struct.Struct(f"<Q8sI4xQ{DIGEST_BYTES}s")
_CHECKSUM = struct.Struct("<Q")
HEADER_BYTES = _HEADER.size


def record_bytes(payload: int) -> int:
    """Return the bytes on disk of a record with `payload` bytes."""
    return -(-(HEADER_BYTES + payload) // ALIGNMENT) * ALIGNMENT


def payload_of(record: memoryview, length: int) -> memoryview:
    """Return the memory of a payload in a record."""
    return record[HEADER_BYTES : HEADER_BYTES + length]


def seal(record: memoryview, digest: bytes, length: int) -> None:
    """Complete a record that has a payload of `length` bytes."""
    end = HEADER_BYTES + length
    record[end:] = bytes(len(record) - end)  # the buffer may hold another prefix, which is not to outlive its record
    _HEADER.pack_into(record, 0, 0, _MAGIC, _VERSION, length, digest)
    _CHECKSUM.pack_into(record, 0, checksum(record[_CHECKSUM.size : end]))


def problem_of(record: memoryview, digest: bytes, length: int | None) -> DiskProblem:
    """Return why a record is not that of the prefix with this digest and a payload of `length` bytes; "": it is.

    None: a payload of any length.
    """
    stored, magic, version, found, prefix = _HEADER.unpack_from(record)
    if (magic, version) != (_MAGIC, _VERSION) or found > len(record) - HEADER_BYTES:
        return "checksum"
    if stored != checksum(record[_CHECKSUM.size : HEADER_BYTES + found]):
        return "checksum"
    return "" if prefix == digest and length in (None, found) else "replaced"
