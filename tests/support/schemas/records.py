"""Records of business: patterns, formats, bounds, constants and dates."""

from typing import Any

_DRAFT_7 = "http://json-schema.org/draft-07/schema#"
_DRAFT_2020 = "https://json-schema.org/draft/2020-12/schema"
_MONEY = {"type": "number", "minimum": 0, "maximum": 100000, "multipleOf": 0.01}

SCHEMAS: dict[str, dict[str, Any]] = {
    "invoice": {
        "$schema": _DRAFT_2020,
        "type": "object",
        "properties": {
            "number": {"type": "string", "pattern": "^INV-[0-9]{6}$"},
            "issued": {"type": "string", "format": "date"},
            "currency": {"enum": ["EUR", "USD", "GBP", "JPY"]},
            "lines": {
                "type": "array",
                "minItems": 1,
                "maxItems": 3,
                "items": {
                    "type": "object",
                    "properties": {
                        "description": {"type": "string", "maxLength": 40},
                        "quantity": {"type": "integer", "minimum": 1, "maximum": 999},
                        "price": _MONEY,
                    },
                    "required": ["description", "quantity", "price"],
                    "additionalProperties": False,
                },
            },
            "paid": {"type": "boolean", "default": False},
        },
        "required": ["number", "issued", "currency", "lines"],
        "additionalProperties": False,
    },
    "postal address": {
        "$schema": _DRAFT_7,
        "type": "object",
        "properties": {
            "street": {"type": "string", "minLength": 3, "maxLength": 50},
            "zip": {"type": "string", "pattern": "^[0-9]{5}(-[0-9]{4})?$"},
            "state": {"type": "string", "pattern": "^[A-Z]{2}$"},
            "country": {"const": "US"},
        },
        "required": ["street", "zip", "state", "country"],
        "additionalProperties": False,
    },
    "contact": {
        "type": "object",
        "properties": {
            "email": {"type": "string", "format": "email", "maxLength": 50},
            "phone": {"type": "string", "pattern": "^\\+[1-9][0-9]{6,14}$"},
            "id": {"type": "string", "format": "uuid"},
            "nickname": {"type": ["string", "null"], "maxLength": 20},
        },
        "required": ["email", "id"],
        "additionalProperties": False,
    },
    "bank transfer": {
        "type": "object",
        "properties": {
            "iban": {"type": "string", "pattern": "^[A-Z]{2}[0-9]{2}[A-Z0-9]{11,30}$"},
            "amount": {"type": "number", "exclusiveMinimum": 0, "maximum": 15000},
            "executed_at": {"type": "string", "format": "date-time"},
            "reference": {"type": "string", "maxLength": 35},
        },
        "required": ["iban", "amount", "executed_at"],
        "additionalProperties": False,
    },
    "patient": {
        "type": "object",
        "properties": {
            "resourceType": {"const": "Patient"},
            "id": {"type": "string", "pattern": "^[A-Za-z0-9.-]{1,24}$"},
            "gender": {"enum": ["male", "female", "other", "unknown"]},
            "birthDate": {"type": "string", "format": "date"},
            "name": {
                "type": "array",
                "maxItems": 2,
                "items": {
                    "type": "object",
                    "properties": {
                        "use": {"enum": ["usual", "official", "nickname"]},
                        "family": {"type": "string", "maxLength": 30},
                        "given": {"type": "array", "maxItems": 3, "items": {"type": "string", "maxLength": 20}},
                    },
                    "required": ["family"],
                    "additionalProperties": False,
                },
            },
        },
        "required": ["resourceType", "id", "gender"],
        "additionalProperties": False,
    },
    "product": {
        "type": "object",
        "properties": {
            "sku": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"},
            "title": {"type": "string", "minLength": 1, "maxLength": 60},
            "price": _MONEY,
            "stock": {"type": "integer", "minimum": 0},
            "tags": {"type": "array", "maxItems": 4, "items": {"enum": ["new", "sale", "eco", "import"]}},
            "dimensions": {
                "type": "object",
                "properties": {side: {"type": "number", "minimum": 0, "maximum": 500} for side in ("w", "h", "d")},
                "required": ["w", "h"],
                "additionalProperties": False,
            },
        },
        "required": ["sku", "title", "price"],
        "additionalProperties": False,
    },
    "measurement": {
        "type": "object",
        "properties": {
            "sensor": {"type": "string", "pattern": "^(temp|hum|co2)/[0-9a-f]{4}$"},
            "at": {"type": "string", "format": "date-time"},
            "value": {"type": "number", "minimum": -273.15, "maximum": 1000},
            "unit": {"enum": ["°C", "%", "ppm"]},
            "quality": {"type": "integer", "minimum": 0, "maximum": 100, "multipleOf": 5},
        },
        "required": ["sensor", "at", "value", "unit"],
        "additionalProperties": False,
    },
    "flight": {
        "type": "object",
        "properties": {
            "carrier": {"type": "string", "pattern": "^[A-Z0-9]{2}$"},
            "number": {"type": "integer", "minimum": 1, "maximum": 9999},
            "from": {"$ref": "#/definitions/airport"},
            "to": {"$ref": "#/definitions/airport"},
            "duration": {"type": "string", "format": "duration"},
            "cabin": {"enum": ["economy", "premium", "business", "first", None]},
        },
        "required": ["carrier", "number", "from", "to", "cabin"],
        "additionalProperties": False,
        "definitions": {"airport": {"type": "string", "pattern": "^[A-Z]{3}$"}},
    },
    "employee": {
        "$schema": _DRAFT_7,
        "type": "object",
        "properties": {
            "first_name": {"type": "string", "maxLength": 20},
            "last_name": {"type": "string", "maxLength": 20},
            "grade": {"type": "string", "enum": ["junior", "senior", "lead"]},
            "salary": {"type": "integer", "minimum": 20000, "maximum": 500000, "multipleOf": 100},
            "manager": {"anyOf": [{"type": "string", "pattern": "^E[0-9]{5}$"}, {"type": "null"}]},
            "skills": {
                "type": "object",
                "additionalProperties": {"type": "integer", "minimum": 1, "maximum": 5},
                "maxProperties": 3,
            },
        },
        "required": ["first_name", "last_name", "grade", "manager"],
        "additionalProperties": False,
    },
    "weather report": {
        "type": "object",
        "properties": {
            "place": {
                "type": "object",
                "properties": {
                    "lat": {"type": "number", "minimum": -90, "maximum": 90},
                    "lon": {"type": "number", "minimum": -180, "maximum": 180},
                },
                "required": ["lat", "lon"],
                "additionalProperties": False,
            },
            "hours": {
                "type": "array",
                "minItems": 2,
                "maxItems": 4,
                "items": {
                    "type": "array",
                    "prefixItems": [
                        {"type": "integer", "minimum": 0, "maximum": 23},
                        {"type": "number", "minimum": -60, "maximum": 60},
                        {"enum": ["sun", "cloud", "rain", "snow"]},
                    ],
                    "items": False,
                    "minItems": 3,
                },
            },
        },
        "required": ["place", "hours"],
        "additionalProperties": False,
    },
}
