"""The schemas of constraint fields in the OpenAPI document."""

from typing import Any

OBJECT: dict[str, Any] = {"type": "object"}
TEXT: dict[str, Any] = {"type": "string"}
TEXTS: dict[str, Any] = {"type": "array", "items": TEXT, "minItems": 1}
_NAMED = {"type": "object", "properties": {"schema": OBJECT}, "required": ["schema"]}
_OUTPUTS: dict[str, list[dict[str, Any]]] = {
    "json": [OBJECT, TEXT],
    "regex": [TEXT],
    "choice": [TEXTS],
    "grammar": [TEXT],
    "structural_tag": [OBJECT, TEXT],
    "json_object": [{"const": True}],
}


def _format(kind: str, **others: object) -> dict[str, Any]:
    return {"type": "object", "properties": {"type": {"const": kind}, **others}, "required": ["type", *others]}


def _only(name: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name: {"anyOf": _OUTPUTS[name]}},
        "required": [name],
        "additionalProperties": {"enum": [None, False]},
    }


FORMATS = [
    _format("text"),
    _format("json_object"),
    _format("json_schema", json_schema=_NAMED),
    _format("structural_tag"),
]
OUTPUTS = [_only(name) for name in _OUTPUTS]
