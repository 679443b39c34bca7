"""The ASGI application of the gateway: own routes; all other requests are passed to the model that they name."""

import logging
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import unquote_to_bytes

import msgspec
from fastapi import Request
from numaserve.server.app.middleware.request_timeout import TIMEOUT_HEADER
from numaserve.server.engine.types import EngineError
from numaserve.server.gateway.adapters import ADAPTER_ROUTES, ordered_model
from numaserve.server.gateway.asking import Ask, Question, first_that_knows, gathered, summed
from numaserve.server.gateway.bodies import decoded
from numaserve.server.gateway.cut_off import last_event
from numaserve.server.gateway.own_routes import OwnRoutes
from numaserve.server.gateway.passing import IDLE_CONNECTIONS, AnswerCutOff, Headers, pass_on
from numaserve.server.generation.served_names import LATEST
from numaserve.server.http.access_log import record_of
from numaserve.server.http.auth.admin import check_admin
from numaserve.server.http.auth.passed_clients import PASSED_HEADER, passed_header
from numaserve.server.http.auth.peers import client_at
from numaserve.server.http.body.names_model import NamesModel
from numaserve.server.http.body.process import DecodingProcess
from numaserve.server.http.disconnect import until_disconnect
from numaserve.server.http.errors import ApiError, from_engine, from_http, from_problem, model_not_found
from numaserve.server.surfaces.errors import error_of
from starlette.types import Receive, Scope, Send

_log = logging.getLogger("numaserve.api")

INLINE_BYTES = 1 << 20  # decoded in the event loop within 1 to 2 ms: only the model's name is kept
_LEAST_S = 0.001  # sent when a request's time is over: the model process then answers with the timeout
_RESPONSES = "/v1/responses/"
# Routes whose answers are merged over all models: the name of the list, or of the number, in each answer.
_LISTS = {("GET", "/api/tags"): "models", ("GET", "/api/ps"): "models"}
_COUNTS = {("POST", "/abort_request"): "aborted"}


class _Named(msgspec.Struct):
    """The only field of a body that the gateway reads."""

    model: str | None = None


_decoder = msgspec.json.Decoder(_Named)


@dataclass(frozen=True)
class Gateway:
    """The ASGI application. A request that names no model goes to the model `default`."""

    routes: OwnRoutes
    default: str
    _decoding: DecodingProcess = field(default_factory=DecodingProcess)

    def close(self) -> None:
        """End the process that decodes long bodies."""
        self._decoding.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request = Request(scope, receive)
        try:
            await self._answer(request, send)
        except ApiError as error:
            await self._refuse(request, error, send)
        except EngineError as error:
            await self._refuse(request, from_engine(error), send)
        except AnswerCutOff as cut:
            _log.error("a model process ended in the middle of a response", extra=_fields(request))
            event = last_event(scope["path"], cut)
            if event is None:
                raise  # too late for an answer: the connection must break so that the client notices
            await send({"type": "http.response.body", "body": event, "more_body": False})

    async def _answer(self, request: Request, send: Send) -> None:
        scope, path = request.scope, request.scope["path"]
        own = self.routes.find(path)
        if own is not None:
            method, handler = own
            if scope["method"] != method:
                raise from_http(405, "", {"Allow": method}, scope["method"], path)
            response = await handler(request)
        elif not _is_text(scope["raw_path"]):
            raise from_http(404, "", None, scope["method"], path)  # for every model, loaded or not
        elif (ask := _asked_of_all(scope["method"], path)) is not None:
            question = Question(scope, _told(request, self._client(request)), await request.body())
            response = await until_disconnect(request, ask(self.routes.fleet.open_sessions().values(), question))
        else:
            client = self._client(request)  # first: the key may be removed while the body and the model are awaited
            body = await request.body()
            await until_disconnect(request, self._pass_on(request, body, send, client))
            return
        await response(scope, request.receive, send)

    async def _refuse(self, request: Request, error: ApiError, send: Send) -> None:
        if error.refusal is not None:
            self.routes.metrics.refused(error.refusal)
        await error_of(request.scope, error)(request.scope, request.receive, send)

    async def _pass_on(self, request: Request, body: bytes, send: Send, client: bytes) -> None:
        name = await (self._meant_for_adapter if request.scope["path"] in ADAPTER_ROUTES else self._meant)(
            request, body
        )
        fleet = self.routes.fleet
        record_of(request).model = name
        # A request without a body only queries, which is no reason to load a model.
        left = record_of(request).time_left
        session = await fleet.session_of(name, client, len(body), left) if body else fleet.session_if_ready(name)
        try:
            told = _told(request, client)
            if fleet.requests(name) > IDLE_CONNECTIONS:
                # Otherwise each model would keep as many idle connections as were ever in use at once.
                told.append((b"connection", b"close"))
            await pass_on(session, request.scope, send, body, told)
        finally:
            fleet.leave(name)

    async def _meant(self, request: Request, body: bytes) -> str:
        """Return the model of a request: the one that the body names, or the query if there is no body."""
        given = await self._named_in(body) if body else request.query_params.get("model")
        if given is None:
            return self.default
        names = self.routes.names
        name = names.get(given) or names.get(given.removesuffix(LATEST)) or await self.routes.adapters.model_of(given)
        if name is None:
            raise model_not_found(given, names)
        return name

    async def _meant_for_adapter(self, request: Request, body: bytes) -> str:
        """Return the model of a load or an unload of an adapter. Permission is checked before anything else."""
        routes, headers = self.routes, request.scope["headers"]
        check_admin("Loading and unloading LoRA adapters", routes.keys, headers, is_local=routes.is_local)
        return await ordered_model(routes.adapters, body, routes.names, self.default)

    async def _named_in(self, body: bytes) -> str | None:
        if len(body) > INLINE_BYTES:
            found = await self._decoding.decode(NamesModel, body, refuse_unknown=False)
            if found.problem is not None:
                raise from_problem(found.problem)
            return found.fields.get("model")
        return decoded(_decoder, body).model

    def _client(self, request: Request) -> bytes:
        """Return the header value that identifies a request's client to the model process."""
        keys, headers = self.routes.keys, request.scope["headers"]
        if keys is None:
            return passed_header(client_at(request.scope.get("client")), is_local=self.routes.is_local)
        return passed_header(keys.client(headers), keys.owner(headers), keys.account(headers))


def _is_text(path: bytes) -> bool:
    """Return whether a path is UTF-8, as every path of a model process is."""
    try:
        unquote_to_bytes(path).decode()
    except UnicodeDecodeError:
        return False
    return True


def _asked_of_all(method: str, path: str) -> Ask | None:
    """Return the function that answers a request that concerns all models; None for other requests."""
    if method in {"GET", "DELETE"} and path.startswith(_RESPONSES):
        return first_that_knows
    if (method, path) in _LISTS:
        return partial(gathered, name=_LISTS[method, path])
    if (method, path) in _COUNTS:
        return partial(summed, name=_COUNTS[method, path])
    return None


def _told(request: Request, client: bytes) -> Headers:
    """Return the headers that the gateway adds to the client's: client, request id and remaining time."""
    record = record_of(request)
    told = [(PASSED_HEADER, client), (b"x-request-id", record.request_id.encode())]
    if record.time_left is not None:  # the model process starts its own timer now
        told.append((TIMEOUT_HEADER, b"%.3f" % max(_LEAST_S, record.time_left)))
    return told


def _fields(request: Request) -> dict[str, object]:
    record = record_of(request)
    return {"fields": {"request_id": record.request_id, "model": record.model}}
