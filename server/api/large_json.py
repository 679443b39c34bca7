"""JSON of many megabytes, made and sent in pieces: encoding one value holds the GIL until it is done."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence

import msgspec
from fastapi.responses import Response, StreamingResponse

_ITEMS = 2**16  # of an array in a piece
_CHARACTERS = 2**20  # of a string in a piece
_WHOLE_BYTES = 2**20  # an answer up to here is sent at once


def json_pieces(fields: dict[str, object]) -> list[bytes]:
    """The JSON object of `fields`, in pieces; lists of numbers or strings, and strings, are what may be long."""
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
        yield from _joined(value, _CHARACTERS, b'"', b"")
    elif isinstance(value, list) and len(value) > _ITEMS:
        yield from _joined(value, _ITEMS, b"[", b",")
    else:
        yield msgspec.json.encode(value)


def _joined(value: Sequence[object], size: int, quote: bytes, separator: bytes) -> Iterator[bytes]:
    """The pieces of a string or an array, each without the quotes or brackets that encoding puts around it."""
    yield quote
    for start in range(0, len(value), size):
        yield (separator if start else b"") + msgspec.json.encode(value[start : start + size])[1:-1]
    yield {b"[": b"]"}.get(quote, quote)


async def _each(pieces: list[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece
