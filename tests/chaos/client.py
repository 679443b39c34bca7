"""Asks a server, and keeps what came and when."""

import asyncio
import json
import time
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from tests.chaos.traffic import Request

PATIENCE_S = 600.0
_READ_BYTES = 1 << 16


@dataclass
class Asked:
    """A request and what became of it. Times are those of `time.monotonic()`."""

    request: Request
    index: int  # of the request among those of the run
    status: int = 0
    data: bytes = b""
    arrivals: list[float] = field(default_factory=list)  # of reads with an event, or of the whole answer
    error: str = ""  # of the connection
    left: bool = False


async def ask(url: str, asked: Asked) -> Asked:
    """Ask once, over a connection of its own; nothing is tried again. What comes, and what goes wrong, is in `asked`.

    By hand: a library's client would take more of the machine than the server does.
    """
    request = asked.request
    place = urlsplit(url)
    body = json.dumps(request.body).encode()
    head = f"POST {request.path} HTTP/1.1\r\nHost: {place.netloc}\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    try:
        async with asyncio.timeout(PATIENCE_S):
            reader, writer = await asyncio.open_connection(place.hostname, place.port)
            try:
                writer.write(head.encode() + body)
                await _read(reader, asked)
            finally:
                writer.close()
    except (OSError, TimeoutError, asyncio.IncompleteReadError, ValueError) as error:
        asked.error = f"{type(error).__name__}: {error}"
    return asked


async def _read(reader: asyncio.StreamReader, asked: Asked) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    asked.status = int(head.split(b" ", 2)[1])
    parts: list[bytes] = []
    events = 0
    while data := await reader.read(_READ_BYTES):
        parts.append(data)
        came = data.count(asked.request.event_mark)
        if came or not asked.request.streams:  # a comment is no token
            asked.arrivals.append(time.monotonic())
            events += came
        if asked.request.leaves_after is not None and events >= asked.request.leaves_after:
            asked.left = True
            break
    asked.data = b"".join(parts)
    if b"transfer-encoding: chunked" in head.lower():
        asked.data = _without_chunks(asked.data)


def _without_chunks(data: bytes) -> bytes:
    """What was sent in chunks; of the last one that part which has come."""
    found, at = [], 0
    while at < len(data):
        begin = data.find(b"\r\n", at) + 2
        end = begin + int(data[at : begin - 2], 16)
        found.append(data[begin:end])
        at = end + 2
    return b"".join(found)
