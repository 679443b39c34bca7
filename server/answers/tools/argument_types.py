"""The type of an argument by a tool's schema, for formats that write values without their type."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from numaserve.server.answers.tools.json_cutter import is_json
from numaserve.server.answers.tools.literals import PYTHON, in_json

Types = frozenset[str] | None  # names of types in JSON Schema; None: any type
TEXT = frozenset({"string"})

_DEPTH = 32
_NUMBERS = {"integer", "number"}


def types_of(schema: Mapping[str, Any] | None, argument: str) -> Types:
    """Return the types that `schema`, the schema of all arguments, allows for `argument`."""
    properties = (schema or {}).get("properties")
    return types_in(properties.get(argument) if isinstance(properties, Mapping) else None, schema)


def types_in(schema: object, root: object) -> Types:
    """Return the types that `schema`, a part of `root`, allows."""
    return _types(schema, root, set(), _DEPTH)


def _types(schema: object, root: object, seen: set[str], depth: int) -> Types:
    """Return the types that `schema` allows. Each reference is followed once, so cyclic references terminate."""
    if not isinstance(schema, Mapping) or depth == 0:
        return None
    if isinstance(reference := schema.get("$ref"), str):
        if reference in seen:
            return frozenset()
        seen.add(reference)
        return _types(_target(root, reference), root, seen, depth - 1)
    if (own := _own_types(schema)) is not None:
        return own
    parts = schema.get("anyOf", schema.get("oneOf"))
    if isinstance(parts, list):
        allowed = [_types(part, root, seen, depth - 1) for part in parts]
        return None if None in allowed else frozenset().union(*filter(None, allowed))
    return None


def _own_types(schema: Mapping[str, Any]) -> Types:
    named = schema.get("type")
    if isinstance(named, str | list):
        return frozenset(each for each in ([named] if isinstance(named, str) else named) if isinstance(each, str))
    if isinstance(values := schema.get("enum"), list):
        return _kinds(values)
    return _kinds([schema["const"]]) if "const" in schema else None


def _kinds(values: Iterable[object]) -> Types:
    return frozenset(_kind(json.dumps(value)) for value in values)


def _target(root: object, reference: str) -> object:
    if not reference.startswith("#/"):
        return None
    for part in reference[2:].split("/"):
        root = root.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(root, Mapping) else None
    return root


def _kind(text: str) -> str:
    """Return the type of a JSON value by its first character."""
    return {'"': "string", "{": "object", "[": "array", "t": "boolean", "f": "boolean", "n": "null"}.get(
        text[0], "number"
    )


def value_in_json(text: str, types: Types) -> str:
    """Return the JSON of a value that a model wrote as `text`.

    Text that is neither JSON nor a literal of Python, or is not of `types`, becomes a string: the client sees the
    model's text.
    """
    stripped = text.strip()
    value = stripped if is_json(stripped) else in_json(stripped, PYTHON)
    if value is None or (kind := _kind(value)) == "string":
        return json.dumps(text, ensure_ascii=False)
    if types is None or kind in types or (kind == "number" and types & _NUMBERS):
        return value
    return json.dumps(text, ensure_ascii=False)
