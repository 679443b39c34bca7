"""The forwarding of a request to a model process and of its answer to the client, both byte for byte."""

from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager
from urllib.parse import quote

import aiohttp
from numaserve.server.app.middleware.request_timeout import TIMEOUT_HEADER
from numaserve.server.http.auth.passed_clients import PASSED_HEADER
from numaserve.server.http.errors import ApiError, not_ready
from starlette.types import Scope, Send
from yarl import URL

# Headers of one connection (RFC 9110, 7.6.1), of the gateway's own checks, and those that the gateway itself sets.
_NOT_SENT = frozenset(
    {
        *(b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade"),
        *(b"host", b"content-length", b"expect", b"authorization", b"x-api-key", b"proxy-authorization"),
        *(b"origin", b"sec-fetch-site", b"x-request-id", TIMEOUT_HEADER, PASSED_HEADER),
    }
)
_NOT_ANSWERED = frozenset({b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"trailer", b"date"})
# Headers that aiohttp would add.
_NOT_ADDED = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")
_SLICE = 1 << 18
IDLE_CONNECTIONS = 16  # per model, kept open for later requests
_SAFE = "/:@!$&'()*+,;=~-._"


Headers = list[tuple[bytes, bytes]]


class AnswerCutOff(Exception):
    """The error of a model process that ended in the middle of an answer of type `media_type`.

    `between_events` states that the answer was cut off after a complete event.
    """

    def __init__(self, media_type: str, *, between_events: bool) -> None:
        super().__init__(media_type)
        self.media_type = media_type
        self.between_events = between_events


async def pass_on(session: aiohttp.ClientSession, scope: Scope, send: Send, body: bytes, told: Headers) -> None:
    """Forward the request of `scope` with its `body` and the headers `told`, and stream the answer to `send`.

    A client that reads slowly makes the model process wait, because the buffers of this process are bounded.
    Cancellation closes the connection to the model process, which ends the request there. Raises `ApiError` if there
    is no answer, and `AnswerCutOff` if an answer has no end.
    """
    media_type, last = None, b""
    try:
        async with requested(session, scope, body, told) as answer:
            head = [(name.lower(), value) for name, value in answer.raw_headers if name.lower() not in _NOT_ANSWERED]
            await send({"type": "http.response.start", "status": answer.status, "headers": head})
            media_type = answer.content_type
            async for piece, _ in answer.content.iter_chunks():
                last = piece or last
                await send({"type": "http.response.body", "body": piece, "more_body": True})
    except (aiohttp.ClientError, ConnectionError) as error:
        if media_type is None:
            raise _no_answer() from None
        raise AnswerCutOff(media_type, between_events=last.endswith(b"\n")) from error
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def requested(
    session: aiohttp.ClientSession, scope: Scope, body: bytes, told: Headers
) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
    """Send the request of `scope` with this body to a model process, and return the head of its answer."""
    return session.request(
        scope["method"],
        _url(scope),
        headers=_headers(scope["headers"], len(body), scope["method"], told),
        data=_slices(body) if body else None,
        skip_auto_headers=_NOT_ADDED,
        allow_redirects=False,
    )


def _no_answer() -> ApiError:
    return not_ready("The model process ended while it processed this request. Retry the request.", retry_after=1)


def _url(scope: Scope) -> URL:
    query = scope["query_string"].decode("latin-1")
    # Made from the path that routes are looked up by: the gateway and the model process must see the same path.
    return URL(f"http://model{quote(scope['path'], safe=_SAFE)}" + (f"?{query}" if query else ""), encoded=True)


def _headers(
    given: Iterable[tuple[bytes, bytes]], length: int, method: str, more: Iterable[tuple[bytes, bytes]]
) -> list[tuple[str, str]]:
    given = list(given)
    of_connection = {
        token.strip().lower() for name, value in given if name == b"connection" for token in value.split(b",")
    }
    kept = [(name, value) for name, value in given if name not in _NOT_SENT and name not in of_connection]
    if length or method not in {"GET", "DELETE"}:
        kept.append((b"content-length", b"%d" % length))
    # The client library writes UTF-8. Other bytes beyond ASCII, to which HTTP gives no meaning, are replaced.
    return [(name.decode("latin-1"), value.decode(errors="replace")) for name, value in (*kept, *more)]


async def _slices(body: bytes) -> AsyncIterator[bytes]:
    # In one piece, a long body would be copied whole into the connection's buffer.
    for start in range(0, len(body), _SLICE):
        yield body[start : start + _SLICE]
