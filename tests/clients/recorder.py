"""A proxy before a server that keeps what clients send: one request of each shape, its texts cut short."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from contextlib import suppress
from typing import Any

from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, web

from tests.clients.forcing import forced

# Headers on which an answer may depend.
_KEPT_HEADERS = ("content-type", "accept", "user-agent", "origin", "sec-fetch-mode", "sec-fetch-site")
_HOP_BY_HOP = {"connection", "content-length", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}
_MAX_CHARACTERS = 60
_MAX_IDS = 8
_ID = re.compile("[0-9a-f]{32,}")
_OPERATIONS = {"/metrics"}  # what watches a server, as often as it likes


class Recorder:
    """Serves on `url` what `upstream` serves, and keeps requests in `kept` by their shapes, in the order they came.

    After ``POST /forced?tool=NAME&file=NAME`` requests with that tool have to call it, see `forcing`.
    """

    def __init__(self, upstream: str, kept: dict[str, Any]) -> None:
        self._upstream = upstream
        self._forced = ("", "")
        self._kept = kept
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self.url = ""

    def __enter__(self) -> Recorder:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(self) -> None:
        # Bytes go through as they are; one connection each, so that none is lost to the server's idle timeout.
        self._session = ClientSession(
            auto_decompress=False, cookie_jar=DummyCookieJar(), timeout=ClientTimeout(total=None)
        )
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/forced", self._force)
        app.router.add_route("*", "/{path:.*}", self._forward)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def _stop(self) -> None:
        await self._runner.cleanup()
        await self._session.close()

    async def _force(self, request: web.Request) -> web.Response:
        self._forced = (request.query.get("tool", ""), request.query.get("file", ""))
        return web.Response()

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP_BY_HOP}
        target = self._upstream + request.path_qs
        sent = body
        if self._forced[0] and body:
            sent = json.dumps(forced(request.path, json.loads(body), *self._forced)).encode()
        async with self._session.request(
            request.method, target, headers=headers | {"Connection": "close"}, data=sent, allow_redirects=False
        ) as answer:
            kept = {name: value for name, value in answer.headers.items() if name.lower() not in _HOP_BY_HOP}
            response = web.StreamResponse(status=answer.status, headers=kept)
            said = b""
            with suppress(ConnectionError):  # a client that has left
                await response.prepare(request)
                async for piece in answer.content.iter_any():
                    said += piece if answer.status >= 400 else b""
                    await response.write(piece)
                await response.write_eof()
        self._keep(request, body, answer.status, said)
        return response

    def _keep(self, request: web.Request, body: bytes, status: int, said: bytes) -> None:
        if request.path in _OPERATIONS:
            return
        decoded = json.loads(body) if body else None
        kept: dict[str, Any] = {"method": request.method, "path": request.path_qs}
        kept["headers"] = {
            name: _without_versions(request.headers[name]) for name in _KEPT_HEADERS if name in request.headers
        }
        if decoded is not None:
            kept["body"] = _shortened(decoded)
        kept["status"] = status
        if said:
            answer = json.loads(said)
            error = answer.get("error", answer)  # Cohere's errors have the message outermost
            kept["refusal"] = error if isinstance(error, str) else error["message"]
        shape = json.dumps([request.method, _ID.sub("", request.path), kept["headers"], _shape(decoded), status])
        self._kept.setdefault(shape, kept)


def _without_versions(header: str) -> str:
    return re.sub(r"[/ ]v?\d+\.\d[\w.]*", "", header)


def _shortened(value: object) -> object:
    match value:
        case str():
            return value[:_MAX_CHARACTERS]
        case [int(), *_]:
            return value[:_MAX_IDS]
        case list():
            return [_shortened(item) for item in value]
        case dict():
            return {name: _shortened(item) for name, item in value.items()}
        case _:
            return value


def _shape(value: object) -> object:
    """What two requests have in common that differ in texts and numbers only."""
    match value:
        case None | bool():
            return value
        case dict():
            return {name: item if name in {"role", "type"} else _shape(item) for name, item in sorted(value.items())}
        case list():
            return sorted({json.dumps(_shape(item)) for item in value})
        case _:
            return type(value).__name__
