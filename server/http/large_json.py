"""JSON of many megabytes, encoded and sent in pieces: encoding one value holds the GIL until it is done."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from itertools import islice

import msgspec
from fastapi.responses import Response, StreamingResponse
from numaserve.server.http.spool import Spool, spool_of
from starlette.types import Receive, Scope, Send

_ITEMS = 2**16  # the maximum items of an array in one piece
_CHARACTERS = 2**20  # the maximum characters of a string in one piece
_BLOCK_BYTES = 2**17  # sent at once; a connection holds two blocks that its client has not read
_JSON = "application/json"


def json_pieces(fields: dict[str, object]) -> list[bytes]:
    """Return the JSON object of `fields` in pieces.

    Long values may be strings, lists and iterators; an iterator becomes an array without being stored as a list.
    """
    pieces: list[bytes] = []
    for name, value in fields.items():
        pieces.append((b"," if pieces else b"{") + msgspec.json.encode(name) + b":")
        pieces += _value(value)
    return [*pieces, b"}"] if pieces else [b"{}"]


def array_pieces(items: Iterable[object], *, together: int = 1) -> Iterator[bytes]:
    """Return the pieces of the JSON array of `items`, each with `together` items."""
    left = iter(items)
    return _inside(iter(lambda: list(islice(left, together)), []), b"[", b",", b"]")


class JsonAnswer(Response):
    """A 200 whose JSON body is `content`. A long body moves to the spool of its request until the client reads it.

    Raises `ApiError` when it is sent and the spools of all requests are full.
    """

    def __init__(self, content: bytes) -> None:
        super().__init__(content, media_type=_JSON)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer."""
        if len(self.body) <= _BLOCK_BYTES:
            await super().__call__(scope, receive, send)
            return
        spool = spool_of(scope)
        spool.reserve(len(self.body))
        body, self.body = bytes(self.body), b""
        start = spool.size  # after the vectors that the answer was made from
        await spool.keep(0, body)
        del body
        streamed = StreamingResponse(_blocks(_of_spool(spool, start)))
        streamed.raw_headers = self.raw_headers  # with the length
        await streamed(scope, receive, send)


async def answer_in_pieces(pieces: Iterator[bytes]) -> Response:
    """Return a 200 whose JSON body is the concatenation of `pieces`, each of which is made in a thread.

    Pieces of a long answer are made when the client has read those before. Its length is then unknown, so the body is
    sent in chunks.
    """
    first = await asyncio.to_thread(_block, pieces)
    if len(first) < _BLOCK_BYTES:
        return JsonAnswer(first)
    return StreamingResponse(_blocks(pieces, first), media_type=_JSON)


async def _blocks(pieces: Iterator[bytes], first: bytes = b"") -> AsyncIterator[bytes]:
    if first:
        yield first
    while block := await asyncio.to_thread(_block, pieces):
        yield block


def _block(pieces: Iterator[bytes]) -> bytes:
    """Return the next pieces as one; empty at the end."""
    block = bytearray()
    while len(block) < _BLOCK_BYTES and (piece := next(pieces, None)) is not None:
        block += piece
    return bytes(block)


def _of_spool(spool: Spool, start: int) -> Iterator[bytes]:
    return (spool.read(at, _BLOCK_BYTES) for at in range(start, spool.size, _BLOCK_BYTES))


def _value(value: object) -> Iterator[bytes]:
    if isinstance(value, str) and len(value) > _CHARACTERS:
        yield from _inside(_slices(value, _CHARACTERS), b'"', b"", b'"')
    elif isinstance(value, list) and len(value) > _ITEMS:
        yield from _inside(_slices(value, _ITEMS), b"[", b",", b"]")
    elif isinstance(value, Iterator):
        yield from array_pieces(value, together=_ITEMS)
    else:
        yield msgspec.json.encode(value)


def _slices(value: Sequence[object], size: int) -> Iterator[Sequence[object]]:
    return (value[start : start + size] for start in range(0, len(value), size))


def _inside(parts: Iterator[object], begin: bytes, separator: bytes, end: bytes) -> Iterator[bytes]:
    """Yield the parts of a string or an array, without the quotes or brackets of each part's encoding."""
    yield begin
    encoded = map(msgspec.json.encode, parts)  # no loop over parts: it would hold one's objects while the client reads
    for number, part in enumerate(encoded):
        yield (separator if number else b"") + part[1:-1]
    yield end
