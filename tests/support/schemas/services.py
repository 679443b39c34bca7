"""What services on the web take and give: calls, events, answers of APIs, as OpenAPI documents describe them."""

from typing import Any

_ID = {"type": "integer", "minimum": 1, "maximum": 2147483647}
_LOGIN = {"type": "string", "pattern": "^[a-z][a-z0-9-]{0,15}$"}
_TIME = {"type": "string", "format": "date-time"}
_SHA = {"type": "string", "pattern": "^[0-9a-f]{40}$"}


def _object(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


SCHEMAS: dict[str, dict[str, Any]] = {
    "issue": _object(
        ["id", "title", "state", "user", "labels"],
        id=_ID,
        title={"type": "string", "maxLength": 60},
        state={"enum": ["open", "closed"]},
        state_reason={"enum": ["completed", "reopened", "not_planned", None]},
        user=_object(["login", "id"], login=_LOGIN, id=_ID, site_admin={"type": "boolean"}),
        labels={
            "type": "array",
            "maxItems": 3,
            "items": {
                "anyOf": [
                    {"type": "string", "maxLength": 20},
                    _object(["name", "color"], name={"type": "string", "maxLength": 20}, color={"$ref": "#/$defs/rgb"}),
                ]
            },
        },
    )
    | {"$defs": {"rgb": {"type": "string", "pattern": "^[0-9a-f]{6}$"}}},
    "push event": _object(
        ["ref", "before", "after", "commits"],
        ref={"type": "string", "pattern": "^refs/heads/[a-z0-9/_-]{1,20}$"},
        before=_SHA,
        after=_SHA,
        commits={
            "type": "array",
            "maxItems": 2,
            "items": _object(["id", "message"], id=_SHA, message={"type": "string", "maxLength": 50}, timestamp=_TIME),
        },
    ),
    "release": _object(
        ["tag_name", "draft", "assets"],
        tag_name={"type": "string", "pattern": r"^v(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)$"},
        draft={"type": "boolean"},
        published_at={"anyOf": [_TIME, {"type": "null"}]},
        assets={
            "type": "array",
            "maxItems": 2,
            "items": _object(
                ["name", "size"], name={"type": "string", "maxLength": 30}, size={"type": "integer", "minimum": 0}
            ),
        },
    ),
    "function call": _object(
        ["name", "arguments"],
        name={"const": "get_weather"},
        arguments=_object(
            ["location"],
            location={"type": "string", "description": "City and country", "maxLength": 40},
            unit={"type": "string", "enum": ["celsius", "fahrenheit"]},
            days={"type": "integer", "minimum": 1, "maximum": 14},
        ),
    ),
    "search query": _object(
        ["query"],
        query={"type": "string", "minLength": 1, "maxLength": 60},
        filters={
            "type": "array",
            "maxItems": 3,
            "items": _object(
                ["field", "op", "value"],
                field={"enum": ["author", "year", "topic"]},
                op={"enum": ["=", "!=", "<", ">", "in"]},
                value={"type": ["string", "integer"], "maxLength": 20},
            ),
        },
        page=_object(["size"], size={"enum": [10, 20, 50]}, after={"type": ["string", "null"], "maxLength": 12}),
    ),
    "problem details": {
        "type": "object",
        "properties": {
            "type": {"const": "about:blank"},
            "title": {"type": "string", "maxLength": 40},
            "status": {"type": "integer", "minimum": 400, "maximum": 599},
            "detail": {"type": "string", "maxLength": 80},
        },
        "required": ["title", "status"],
        "additionalProperties": False,
    },
    "pet": {
        "type": "object",
        "required": ["name", "photoUrls"],
        "properties": {
            "id": {"type": "integer", "format": "int64", "minimum": 0, "example": 10},
            "name": {"type": "string", "maxLength": 20, "example": "doggie"},
            "category": {"$ref": "#/components/schemas/Category"},
            "photoUrls": {
                "type": "array",
                "maxItems": 2,
                "items": {"type": "string", "pattern": "^https://pets/[a-z]+$"},
            },
            "status": {"type": "string", "enum": ["available", "pending", "sold"]},
        },
        "additionalProperties": False,
        "components": {
            "schemas": {
                "Category": {
                    "type": "object",
                    "properties": {"id": {"type": "integer"}, "name": {"type": "string", "maxLength": 20}},
                    "additionalProperties": False,
                }
            }
        },
    },
    "payment intent": _object(
        ["amount", "currency", "status", "payment_method"],
        amount={"type": "integer", "minimum": 50, "maximum": 99999999},
        currency={"type": "string", "pattern": "^[a-z]{3}$"},
        status={"enum": ["requires_action", "processing", "succeeded", "canceled"]},
        payment_method={
            "oneOf": [
                _object(["type", "last4"], type={"const": "card"}, last4={"type": "string", "pattern": "^[0-9]{4}$"}),
                _object(["type", "bank"], type={"const": "sepa_debit"}, bank={"type": "string", "maxLength": 12}),
            ]
        },
    ),
    "log entry": _object(
        ["ts", "level", "message"],
        ts=_TIME,
        level={"enum": ["TRACE", "DEBUG", "INFO", "WARN", "ERROR"]},
        message={"type": "string", "maxLength": 80},
        source={"anyOf": [{"type": "string", "format": "ipv4"}, {"type": "string", "format": "ipv6"}]},
        context={"type": "object", "additionalProperties": {"type": "string", "maxLength": 15}, "maxProperties": 2},
    ),
    "geojson point or line": {
        "oneOf": [
            _object(["type", "coordinates"], type={"const": "Point"}, coordinates={"$ref": "#/$defs/position"}),
            _object(
                ["type", "coordinates"],
                type={"const": "LineString"},
                coordinates={"type": "array", "minItems": 2, "maxItems": 3, "items": {"$ref": "#/$defs/position"}},
            ),
        ],
        "$defs": {
            "position": {
                "type": "array",
                "items": {"type": "number", "minimum": -180, "maximum": 180},
                "minItems": 2,
                "maxItems": 3,
            }
        },
    },
}
