"""The gateway's own routes: its health, the list of models, and orders to load or unload one."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import msgspec
from fastapi import Request
from fastapi.responses import Response
from numaserve.server.gateway.adapters import Adapters
from numaserve.server.gateway.asking import Question, answers
from numaserve.server.gateway.bodies import decoded
from numaserve.server.gateway.description import described
from numaserve.server.gateway.models.fleet import Fleet
from numaserve.server.gateway.models.metrics import FleetMetrics
from numaserve.server.gateway.models.waiting import not_loadable
from numaserve.server.generation.served_names import LATEST
from numaserve.server.http.access_log import record_of
from numaserve.server.http.auth.admin import check_admin
from numaserve.server.http.auth.keys import Callers
from numaserve.server.http.disconnect import until_disconnect
from numaserve.server.http.errors import ApiError, from_http, model_not_found, not_ready
from numaserve.server.http.limits import ApiLimits
from numaserve.server.http.ui_files import ui_answer, ui_files
from numaserve.server.images.types import ImageLimits
from numaserve.server.surfaces.model_list import input_fields, model_answer, models_answer
from numaserve.server.surfaces.ollama.greeting import OLLAMA_VERSION, greeting
from numaserve.server.surfaces.streaming import json_response

Handler = Callable[[Request], Awaitable[Response]]
_ONE_MODEL = "/v1/models/"
_DOCUMENT = "/openapi.json"
# Paths in the OpenAPI document that concern no single model.
_OF_ALL = frozenset(
    {
        *("/health", "/readyz", "/livez", "/ping", "/version", "/metrics"),
        *("/v1/models", "/v1/models/{name}", "/api/version", "/api/tags", "/api/ps"),
        *("/v1/responses/{response_id}", "/v1/responses/{response_id}/input_items"),
    }
)


class Order(msgspec.Struct, forbid_unknown_fields=True):
    """The body of an order: the name of a model in the file."""

    model: str


_decoder = msgspec.json.Decoder(Order)


@dataclass(frozen=True)
class Shown:
    """The fields of a model in listings."""

    root: str  # the model's own name
    max_model_len: int
    images: ImageLimits | None  # None: the model takes no images


@dataclass(frozen=True)
class OwnRoutes:
    """The gateway's own routes. `names` maps every name of a model to its first name.

    Loading and unloading need a key with `admin=yes`. Without API keys, every client may load and unload if `is_local`,
    which states that only this machine can send requests.
    """

    fleet: Fleet
    names: Mapping[str, str]
    shown: Mapping[str, Shown]
    keys: Callers | None
    is_local: bool
    metrics: FleetMetrics
    version: str
    adapters: Adapters
    ui: bool = True  # serve the page of GET /ui
    root_path: str = ""  # under which a proxy shows the server
    created: int = field(default_factory=lambda: int(time.time()))

    def find(self, path: str) -> tuple[str, Handler] | None:
        """Return the method and the handler of a path; None if it is no route of the gateway."""
        if path.startswith(_ONE_MODEL):
            return "GET", self._model
        if path in ui_files():
            return "GET", self._page
        return {
            "/": ("GET", self._root),
            "/api/version": ("GET", self._ollama_version),
            "/health": ("GET", self._readyz),
            "/readyz": ("GET", self._readyz),
            "/livez": ("GET", self._livez),
            "/ping": ("GET", self._readyz),
            "/version": ("GET", self._version),
            "/v1/models": ("GET", self._list),
            "/models/load": ("POST", self._load),
            "/models/unload": ("POST", self._unload),
            "/metrics": ("GET", self._metrics),
            _DOCUMENT: ("GET", self._document),
        }.get(path)

    async def _page(self, request: Request) -> Response:
        path = request.scope["path"]
        if not self.ui:
            raise from_http(404, "", None, request.method, path)
        return ui_answer(path, request)

    async def _readyz(self, _: Request) -> Response:
        if self.fleet.is_ready():
            return json_response({"status": "ok"})
        message = (
            "Some models that are loaded at the start are loading or have failed. Retry later, or see the server log."
        )
        error = not_ready(message)
        error.refusal = None  # a probe asks for no tokens
        raise error

    async def _livez(self, _: Request) -> Response:
        return json_response({"status": "ok"})

    async def _version(self, _: Request) -> Response:
        return json_response({"version": self.version})

    async def _metrics(self, _: Request) -> Response:
        for name in self.fleet.names:
            self.metrics.changed(name, self.fleet.state(name))
            self.metrics.waiting(name, self.fleet.waiting(name))
        body, content_type = await self.metrics.render(self.fleet.open_sessions())
        return Response(body, media_type=content_type)

    async def _document(self, request: Request) -> Response:
        question = Question(request.scope, [])
        found = await until_disconnect(request, answers(self.fleet.open_sessions().values(), question))
        documents = [bytes(answer.body) for answer in found if answer.status_code == 200]
        if not documents:
            raise not_ready(
                "The description of the routes needs a loaded model, and none is loaded. Load a model and retry.",
                retry_after=None,
            )
        has_keys = self.keys is not None
        return json_response(described(documents, _OF_ALL, has_keys=has_keys, root_path=self.root_path))

    async def _root(self, request: Request) -> Response:
        return greeting(request, ui=self.ui, root_path=self.root_path)

    async def _ollama_version(self, _: Request) -> Response:
        return json_response({"version": OLLAMA_VERSION})

    async def _list(self, request: Request) -> Response:
        return models_answer(request, await until_disconnect(request, self._all()))

    async def _model(self, request: Request) -> Response:
        name = request.scope["path"].removeprefix(_ONE_MODEL)
        if name not in self.names:
            for each in await until_disconnect(request, self._all()):
                if each["id"] == name.removesuffix(LATEST):
                    return model_answer(request, each)
        record_of(request).model = self.names[self._known(name)]
        return model_answer(request, self._described(name))

    async def _all(self) -> list[dict[str, object]]:
        """Return the models and their adapters."""
        adapters = await self.adapters.listed()
        return [self._described(name) for name in self.names] + [
            self._described(model) | {"id": name, "root": path, "parent": model}
            for name, (model, path) in adapters.items()
        ]

    async def _load(self, request: Request) -> Response:
        name = await self._ordered(request)
        state = await until_disconnect(request, self.fleet.load(name))
        if state != "ready":
            raise ApiError(503, not_loadable(name), kind="server_error", code="load_failed", refusal=None)
        return json_response({"model": name, "state": state})

    async def _unload(self, request: Request) -> Response:
        name = await self._ordered(request)
        return json_response({"model": name, "state": await until_disconnect(request, self.fleet.unload(name))})

    async def _ordered(self, request: Request) -> str:
        """Return the model of an order. Raises `ApiError`; permission is checked before anything else."""
        what, headers = "Loading and unloading models", request.scope["headers"]
        check_admin(what, self.keys, headers, is_local=self.is_local)
        name = self.names[self._known(decoded(_decoder, await request.body()).model)]
        record_of(request).model = name
        return name

    def _known(self, name: str) -> str:
        if name not in self.names:
            raise model_not_found(name, self.names)
        return name

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
            **input_fields(self.shown[model].images, ApiLimits.max_body_bytes),
            "state": self.fleet.state(model),
        }
