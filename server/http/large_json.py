"""JSON of many megabytes, made and sent in pieces: encoding one value holds the GIL until it is done."""

from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import islice

import msgspec
from fastapi.responses import Response, StreamingResponse

_ITEMS = 2**16  # the most of an array in one piece
_CHARACTERS = 2**20  # the most of a string in one piece
_WHOLE_BYTES = 2**20  # an answer up to here is sent at once


def json_pieces(fields: dict[str, object]) -> list[bytes]:
    """The JSON object of `fields`, in pieces; what may be long are strings, lists, and iterators, which become arrays
    without ever being a list."""
    pieces: list[bytes] = []
    for name, value in fields.items():
        pieces.append((b"," if pieces else b"{") + msgspec.json.encode(name) + b":")
        pieces += _value(value)
    return [*pieces, b"}"] if pieces else [b"{}"]


def pieces_response(pieces: list[bytes]) -> Response:
    """A 200 with the JSON body that `pieces` make together."""
    size = sum(map(len, pieces))
    if size <= _WHOLE_BYTES:
        return Response(b"".join(pieces), media_type="application/json")
    return StreamingResponse(_each(pieces), headers={"Content-Length": str(size)}, media_type="application/json")


def _value(value: object) -> Iterator[bytes]:
    if isinstance(value, str) and len(value) > _CHARACTERS:
        yield from _inside(_slices(value, _CHARACTERS), b'"', b"", b'"')
    elif isinstance(value, list) and len(value) > _ITEMS:
        yield from _inside(_slices(value, _ITEMS), b"[", b",", b"]")
    elif isinstance(value, Iterator):
        yield from _inside(iter(lambda: list(islice(value, _ITEMS)), []), b"[", b",", b"]")
    else:
        yield msgspec.json.encode(value)


def _slices(value: Sequence[object], size: int) -> Iterator[Sequence[object]]:
    return (value[start : start + size] for start in range(0, len(value), size))


def _inside(parts: Iterator[object], begin: bytes, separator: bytes, end: bytes) -> Iterator[bytes]:
    """The parts of a string or an array, each without the quotes or brackets that encoding puts around it."""
    yield begin
    for number, part in enumerate(parts):
        yield (separator if number else b"") + msgspec.json.encode(part)[1:-1]
    yield end


async def _each(pieces: list[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece
