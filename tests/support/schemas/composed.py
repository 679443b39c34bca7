"""Schemas that refer to themselves and to others: trees, unions told apart by a constant, intersections."""

from typing import Any

_SHORT = {"type": "string", "maxLength": 25}


def _object(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _kind(kind: str, **properties: Any) -> dict[str, Any]:
    return _object(["kind", *properties], kind={"const": kind}, **properties)


_EXPRESSION = {"$ref": "#/$defs/expression"}

SCHEMAS: dict[str, dict[str, Any]] = {
    "tree": {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": _object(
                ["value"],
                value={"type": "integer", "minimum": 0, "maximum": 99},
                children={"type": "array", "maxItems": 2, "items": {"$ref": "#/$defs/node"}},
            )
        },
    },
    "linked list": {
        **_object(["head"], head={"anyOf": [{"$ref": "#/$defs/cell"}, {"type": "null"}]}),
        "$defs": {
            "cell": _object(["item", "next"], item=_SHORT, next={"anyOf": [{"$ref": "#/$defs/cell"}, {"type": "null"}]})
        },
    },
    "user interface": {
        "type": "object",
        "properties": {
            "type": {"type": "string", "enum": ["div", "button", "header", "section", "field", "form"]},
            "label": _SHORT,
            "children": {"type": "array", "maxItems": 2, "items": {"$ref": "#"}},
            "attributes": {
                "type": "array",
                "maxItems": 2,
                "items": _object(["name", "value"], name=_SHORT, value=_SHORT),
            },
        },
        "required": ["type", "label", "children", "attributes"],
        "additionalProperties": False,
    },
    "expression": {
        **_EXPRESSION,
        "$defs": {
            "expression": {
                "oneOf": [
                    _kind("number", value={"type": "number", "minimum": -1000, "maximum": 1000}),
                    _kind("name", name={"type": "string", "pattern": "^[a-z]{1,8}$"}),
                    _kind("sum", left=_EXPRESSION, right=_EXPRESSION),
                ]
            }
        },
    },
    "shapes": {
        "type": "array",
        "minItems": 1,
        "maxItems": 3,
        "items": {
            "oneOf": [
                _kind("circle", radius={"type": "number", "exclusiveMinimum": 0, "maximum": 100}),
                _kind("square", side={"type": "number", "exclusiveMinimum": 0, "maximum": 100}),
                _kind("label", text=_SHORT),
            ]
        },
    },
    "intersection": {
        "allOf": [
            {"type": "object", "properties": {"id": {"type": "integer", "minimum": 1}}, "required": ["id"]},
            {"type": "object", "properties": {"id": {"maximum": 500}, "name": _SHORT}, "required": ["name"]},
        ],
        "additionalProperties": True,
        "maxProperties": 2,
    },
    "inherited": {
        "$ref": "#/$defs/dog",
        "$defs": {
            "animal": {
                "type": "object",
                "properties": {"species": _SHORT, "legs": {"type": "integer", "minimum": 0, "maximum": 8}},
                "required": ["species"],
            },
            "dog": {
                "properties": {
                    "species": {"const": "dog"},
                    "breed": {"type": "string", "pattern": "^[A-Z][a-z]{2,12}$"},
                },
                "allOf": [{"$ref": "#/$defs/animal"}],
                "required": ["breed"],
                "additionalProperties": False,
            },
        },
    },
    "chat turn": _object(
        ["role", "content"],
        role={"enum": ["user", "assistant"]},
        content={
            "anyOf": [
                {"type": "string", "maxLength": 80},
                {
                    "type": "array",
                    "minItems": 1,
                    "maxItems": 2,
                    "items": {
                        "anyOf": [
                            _object(["type", "text"], type={"const": "text"}, text=_SHORT),
                            _object(
                                ["type", "url"],
                                type={"const": "image"},
                                url={"type": "string", "pattern": "^https://[a-z]{2,8}[.]org/[a-z]{1,9}[.]png$"},
                            ),
                        ]
                    },
                },
            ]
        },
    ),
    "agent step": _object(
        ["thought", "action"],
        thought={"type": "string", "maxLength": 100},
        action={
            "anyOf": [
                _object(["tool", "query"], tool={"const": "search"}, query=_SHORT),
                _object(["tool", "code"], tool={"const": "python"}, code={"type": "string", "maxLength": 60}),
                _object(["tool", "answer"], tool={"const": "finish"}, answer=_SHORT),
            ]
        },
    ),
    "table": _object(
        ["columns", "rows"],
        columns={
            "type": "array",
            "minItems": 2,
            "maxItems": 3,
            "items": {"type": "string", "pattern": "^[a-z_]{1,10}$"},
        },
        rows={
            "type": "array",
            "maxItems": 3,
            "items": {
                "type": "array",
                "minItems": 2,
                "maxItems": 3,
                "items": {"type": ["string", "integer", "boolean", "null"], "maxLength": 12},
            },
        },
    ),
}
