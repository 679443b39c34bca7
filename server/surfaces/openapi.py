"""The OpenAPI document: FastAPI's, corrected to list the errors and the API keys that the server actually uses."""

import asyncio
from typing import Any, get_args

import msgspec
from fastapi import FastAPI
from fastapi.responses import Response
from numaserve.server.http.auth.keys import OPEN_PATHS
from numaserve.server.surfaces.response_models import Error
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

_Schema = dict[str, Any]
_SCHEME = "api_key"
_REFERENCE = "#/components/schemas/{model}"
_REASONS = {
    400: "The request is invalid or does not fit the context.",
    401: "The request has no valid API key.",
    403: "The request comes from a web page of another site, or the host name in the Host header is not allowed.",
    404: "The model, the response or the route does not exist.",
    408: "The request body did not arrive in time.",
    409: "Requests are running, a LoRA adapter is being loaded, or all memory for adapters is used.",
    413: "The request body exceeds the size limit.",
    429: "The queue is full, or the API key has reached a limit. Retry-After states when to retry.",
    431: "The request has too many headers.",
    500: "The server encountered an error.",
    503: "The server is loading, restarting or shutting down.",
    504: "The request exceeded its time limit.",
}
# Statuses that any route may return, and those that any route with a body may return.
_ALWAYS = (401, 403, 431, 500)
_WITH_BODY = (400, 404, 408, 413, 429, 503, 504)


# Models that routes name by reference, by name: FastAPI does not see them.
_referenced: dict[str, type[BaseModel]] = {}


def _reference(model: type[BaseModel]) -> _Schema:
    _referenced[model.__name__] = model
    return {"$ref": _REFERENCE.format(model=model.__name__)}


def errors(*statuses: int, model: type[BaseModel] = Error) -> dict[int | str, dict[str, Any]]:
    """Return the `responses` of a route: its own errors and those of every route, in the format of `model`."""
    # By reference: FastAPI compiles a `model` again for each status of each route.
    content = {"application/json": {"schema": _reference(model)}}
    return {status: {"description": _REASONS[status], "content": content} for status in (*statuses, *_ALWAYS)}


def body_errors(model: type[BaseModel] = Error) -> dict[int | str, dict[str, Any]]:
    """Return the errors of a route that takes a body."""
    return errors(*_WITH_BODY, model=model)


BODY_ERRORS = body_errors()


def event_stream(*payloads: type[BaseModel], end: str | None = None) -> dict[str, Any]:
    """Return the response of a route that sends server-sent events: the data of an event is one of `payloads` as JSON.

    Payloads with a `type` are sent under this name. `end` is the data of the last event, if it is not a payload.

    The schema is that of one event. OpenAPI 3.1 forbids `itemSchema` of OpenAPI 3.2, and most generators of clients
    refuse documents of version 3.2.
    """
    ends = [] if end is None else [_fields(data={"const": end})]
    return {"content": {"text/event-stream": {"schema": {"anyOf": [*map(_event, payloads), *ends]}}}}


def json_lines(*payloads: type[BaseModel]) -> dict[str, Any]:
    """Return the response of a route that sends lines, each one of `payloads` as JSON. The schema is that of a line."""
    return {"content": {"application/x-ndjson": {"schema": {"anyOf": [*map(_reference, payloads)]}}}}


def _event(payload: type[BaseModel]) -> _Schema:
    data = {"type": "string", "contentMediaType": "application/json", "contentSchema": _reference(payload)}
    if "type" not in payload.model_fields:
        return _fields(data=data)
    (name,) = get_args(payload.model_fields["type"].annotation)
    return _fields(event={"const": name}, data=data)


def _fields(**schemas: _Schema) -> _Schema:
    return {"type": "object", "properties": schemas, "required": list(schemas)}


def describe(app: FastAPI, *, has_keys: bool) -> None:
    """Make `app` answer GET /openapi.json with the corrected document, made and encoded once.

    Making the document takes over half a second of processor time, so that the first request has a thread do it.
    FastAPI's own route would make the document in the event loop, and encode it again for each request.
    """
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _mended(generate(), has_keys=has_keys)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign] # FastAPI's documented way
    making: list[asyncio.Task[bytes]] = []  # of all requests

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi_document() -> Response:
        if not making:
            making.append(asyncio.create_task(asyncio.to_thread(lambda: msgspec.json.encode(app.openapi()))))
        # A client that leaves does not cancel the task of the others.
        return Response(await asyncio.shield(making[0]), media_type="application/json")


def _mended(schema: _Schema, *, has_keys: bool) -> _Schema:
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            # FastAPI adds a 422, which is never returned: the server returns a 400 instead.
            operation["responses"].pop("422", None)
            if has_keys and (method != "get" or path not in OPEN_PATHS):
                operation["security"] = [{_SCHEME: []}]
    components = schema["components"]
    for name in ("HTTPValidationError", "ValidationError"):
        components["schemas"].pop(name, None)
    _, described = models_json_schema(
        [(model, "serialization") for model in _referenced.values()], ref_template=_REFERENCE
    )
    components["schemas"] = dict(sorted((described["$defs"] | components["schemas"]).items()))
    components["securitySchemes"] = {_SCHEME: {"type": "http", "scheme": "bearer"}}
    return schema
