"""The OpenAPI document of the gateway: the documents of the model processes, and the gateway's own routes."""

from collections.abc import Collection, Iterable
from typing import Any, get_args

import msgspec
from numaserve.server.gateway.models.residency import State
from numaserve.server.surfaces.openapi import body_errors

Document = dict[str, Any]

_STATE = {"type": "string", "enum": list(get_args(State)), "title": "State"}
_ORDER = {"type": "object", "title": "Order", "required": ["model"], "properties": {"model": {"type": "string"}}}
_ORDERED = {
    "type": "object",
    "title": "Ordered",
    "required": ["model", "state"],
    "properties": {"model": {"type": "string"}, "state": _STATE},
}
_ORDERS = {
    "/models/load": "Load a model of the models file. The response comes when the model is ready or loading failed.",
    "/models/unload": "Unload a model after its requests finish. The response comes when the model is unloaded.",
}
_NAMED = {
    "name": "model",
    "in": "query",
    "required": False,
    "schema": {"type": "string"},
    "description": "The model to query. Default: the default model.",
}


def described(documents: Iterable[bytes], own: Collection[str], *, has_keys: bool, root_path: str = "") -> Document:
    """Return one document merged from those of the model processes, whose options enable different routes.

    `own` are the paths that concern no single model.
    """
    whole: Document = {}
    for text in documents:
        document = msgspec.json.decode(text, type=Document)
        whole = whole or document
        whole["paths"] |= document["paths"]
        whole["components"]["schemas"] |= document["components"]["schemas"]
    schemas = whole["components"]["schemas"]
    schemas["Model"]["properties"]["state"] = _STATE
    schemas["Model"]["required"].append("state")
    schemas |= {"Order": _ORDER, "Ordered": _ORDERED}
    whole["components"]["schemas"] = dict(sorted(schemas.items()))
    for path, methods in whole["paths"].items():
        for method, operation in methods.items():
            if method == "get" and path not in own:
                operation["parameters"] = [*operation.get("parameters", ()), _NAMED]
            if not has_keys:  # a model process always requires a key, from the gateway
                operation.pop("security", None)
    whole["paths"] |= {path: {"post": _order(path, text, has_keys=has_keys)} for path, text in _ORDERS.items()}
    return whole | ({"servers": [{"url": root_path}]} if root_path else {})


def _order(path: str, description: str, *, has_keys: bool) -> Document:
    answered = {"description": "Successful Response", "content": _json("Ordered")}
    operation = {
        "tags": ["models"],
        "summary": path.removeprefix("/models/").capitalize() + " Model",
        "description": description,
        "operationId": path.strip("/").replace("/", "_"),
        "requestBody": {"content": _json("Order"), "required": True},
        "responses": {"200": answered} | {str(status): each for status, each in body_errors().items()},
    }
    return operation | ({"security": [{"api_key": []}]} if has_keys else {})


def _json(name: str) -> Document:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}
