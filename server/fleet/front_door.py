"""What clients reach: routes of its own about all models, and every other request passed on to the model it names."""

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace

import msgspec
from fastapi import Request
from fastapi.responses import Response
from numaserve.server.api.access_log import record_of
from numaserve.server.api.auth import Callers
from numaserve.server.api.disconnect import until_disconnect
from numaserve.server.api.errors import ApiError, bad_request, from_http, from_problem, model_not_found
from numaserve.server.api.explain import NOT_JSON
from numaserve.server.api.passed_clients import PASSED_HEADER, passed_header
from numaserve.server.api.peers import client_at
from numaserve.server.api.streaming import json_response
from numaserve.server.api.surfaces import error_of
from numaserve.server.fleet.fleet import Fleet
from numaserve.server.fleet.passing import AnswerCutOff, pass_on
from starlette.types import Receive, Scope, Send

_log = logging.getLogger("numaserve.api")

_Handler = Callable[[Request], Awaitable[Response]]
_LATEST = ":latest"  # Ollama's tag of whatever has none


class _Named(msgspec.Struct):
    """The one field of a body that is looked at."""

    model: str | None = None


_decoder = msgspec.json.Decoder(_Named)


@dataclass(frozen=True)
class Shown:
    """What listings say of a model."""

    root: str
    max_model_len: int


@dataclass(frozen=True)
class FrontDoor:
    """The application. `names` leads from every name of a model to the first; the default is for requests without."""

    fleet: Fleet
    names: Mapping[str, str]
    default: str
    shown: Mapping[str, Shown]
    keys: Callers | None
    version: str
    created: int = field(default_factory=lambda: int(time.time()))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request = Request(scope, receive)
        path = scope["path"]
        try:
            own = self._own(path)
            if own is not None:
                scope["route"] = SimpleNamespace(path=path)
                method, handler = own
                if scope["method"] != method:
                    raise from_http(405, "", {"Allow": method}, scope["method"], path)
                await (await handler(request))(scope, receive, send)
                return
            scope["route"] = SimpleNamespace(path="passed on")
            await self._pass_on(request, send)
        except ApiError as error:
            await error_of(scope, error)(scope, receive, send)
        except AnswerCutOff:
            # Too late for an answer: the connection must break so that the client notices.
            _log.error("a model's server ended in the middle of an answer", extra=_fields(request))
            raise

    def _own(self, path: str) -> tuple[str, _Handler] | None:
        if path.startswith("/v1/models/"):
            return "GET", self._model
        return {
            "/health": ("GET", self._readyz),
            "/readyz": ("GET", self._readyz),
            "/livez": ("GET", self._livez),
            "/version": ("GET", self._version),
            "/v1/models": ("GET", self._list),
        }.get(path)

    async def _readyz(self, _: Request) -> Response:
        if self.fleet.is_ready():
            return json_response({"status": "ok"})
        raise ApiError(503, "Models are being loaded, or have failed.", kind="server_error", code="not_ready")

    async def _livez(self, _: Request) -> Response:
        return json_response({"status": "ok"})

    async def _version(self, _: Request) -> Response:
        return json_response({"version": self.version})

    async def _list(self, _: Request) -> Response:
        return json_response({"object": "list", "data": [self._described(name) for name in self.names]})

    async def _model(self, request: Request) -> Response:
        name = request.scope["path"].removeprefix("/v1/models/")
        if name not in self.names:
            raise model_not_found(name)
        return json_response(self._described(name))

    def _described(self, name: str) -> dict[str, object]:
        model = self.names[name]
        return {
            "id": name,
            "object": "model",
            "created": self.created,
            "owned_by": "numaserve",
            "root": self.shown[model].root,
            "parent": None,
            "max_model_len": self.shown[model].max_model_len,
            "state": self.fleet.state(model),
        }

    async def _pass_on(self, request: Request, send: Send) -> None:
        body = await request.body()
        name = self._meant(request, body)
        headers = ((PASSED_HEADER, self._client(request)), (b"x-request-id", record_of(request).request_id.encode()))

        async def pass_one() -> None:
            session = await self.fleet.session_of(name, len(body))
            try:
                await pass_on(session, request.scope, send, body, headers)
            finally:
                self.fleet.leave(name)

        await until_disconnect(request, pass_one())

    def _meant(self, request: Request, body: bytes) -> str:
        """The model that a request is for: what its body says, or its query where it has none."""
        if body:
            try:
                given = _decoder.decode(body).model
            except msgspec.ValidationError:
                raise bad_request("The body must be an object, and 'model' in it a string.", "model") from None
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                raise from_problem(NOT_JSON) from None
        else:
            given = request.query_params.get("model")
        if given is None:
            return self.default
        is_ollama = request.scope["path"].startswith("/api/")
        name = self.names.get(given) or self.names.get(given.removesuffix(_LATEST) if is_ollama else given)
        if name is None:
            raise model_not_found(given)
        return name

    def _client(self, request: Request) -> bytes:
        if self.keys is None:
            return passed_header(client_at(request.scope.get("client")))
        headers = request.scope["headers"]
        return passed_header(self.keys.client(headers), self.keys.owner(headers), self.keys.account(headers))


def _fields(request: Request) -> dict[str, object]:
    return {"fields": {"request_id": record_of(request).request_id}}
