"""JSON of many megabytes, encoded and sent in pieces: encoding one value holds the GIL until it is done."""

from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import islice

import msgspec
from fastapi.responses import Response, StreamingResponse

_ITEMS = 2**16  # the maximum items of an array in one piece
_CHARACTERS = 2**20  # the maximum characters of a string in one piece
_WHOLE_BYTES = 2**20  # an answer up to this size is sent at once


def json_pieces(fields: dict[str, object]) -> list[bytes]:
    """Return the JSON object of `fields` in pieces.

    Long values may be strings, lists and iterators; an iterator becomes an array without being stored as a list.
    """
    pieces: list[bytes] = []
    for name, value in fields.items():
        pieces.append((b"," if pieces else b"{") + msgspec.json.encode(name) + b":")
        pieces += _value(value)
    return [*pieces, b"}"] if pieces else [b"{}"]


def pieces_response(pieces: list[bytes]) -> Response:
    """Return a 200 whose JSON body is the concatenation of `pieces`."""
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
    """Yield the parts of a string or an array, without the quotes or brackets of each part's encoding."""
    yield begin
    for number, part in enumerate(parts):
        yield (separator if number else b"") + msgspec.json.encode(part)[1:-1]
    yield end


async def _each(pieces: list[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece
