"""What applications ask of a text: small objects, as OpenAI's strict mode wants them."""

from typing import Any


def _strict(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


_TEXT = {"type": "string"}
_SHORT = {"type": "string", "maxLength": 60}
_SCORE = {"type": "number", "minimum": 0, "maximum": 1}

SCHEMAS: dict[str, dict[str, Any]] = {
    "person": _strict(name=_SHORT, age={"type": "integer", "minimum": 0, "maximum": 150}, is_alive={"type": "boolean"}),
    "sentiment": _strict(label={"enum": ["positive", "neutral", "negative"]}, confidence=_SCORE),
    "classification": _strict(
        category={"type": "string", "enum": ["billing", "bug", "feature request", "account", "other"]},
        urgency={"type": "integer", "minimum": 1, "maximum": 5},
        language={"type": "string", "pattern": "^[a-z]{2}$"},
    ),
    "entities": _strict(
        entities={
            "type": "array",
            "maxItems": 4,
            "items": _strict(text=_SHORT, kind={"enum": ["person", "place", "organisation", "date"]}),
        }
    ),
    "calendar event": _strict(
        title=_SHORT,
        day={"type": "string", "format": "date"},
        begins={"type": "string", "format": "time"},
        guests={"type": "array", "items": _SHORT, "minItems": 1, "maxItems": 3},
    ),
    "math reasoning": _strict(
        steps={
            "type": "array",
            "items": {"$ref": "#/$defs/step"},
            "minItems": 1,
            "maxItems": 3,
        },
        final_answer=_SHORT,
    )
    | {"$defs": {"step": _strict(explanation=_SHORT, output=_SHORT)}},
    "recipe": {
        "title": "Recipe",
        "type": "object",
        "properties": {
            "name": {"title": "Name", "type": "string", "maxLength": 40},
            "servings": {"title": "Servings", "type": "integer", "exclusiveMinimum": 0, "maximum": 20},
            "ingredients": {
                "title": "Ingredients",
                "type": "array",
                "maxItems": 4,
                "items": {"$ref": "#/$defs/Ingredient"},
            },
            "vegetarian": {"anyOf": [{"type": "boolean"}, {"type": "null"}], "default": None},
        },
        "required": ["name", "servings", "ingredients"],
        "$defs": {
            "Ingredient": {
                "title": "Ingredient",
                "type": "object",
                "properties": {
                    "what": {"title": "What", "type": "string", "maxLength": 30},
                    "grams": {"title": "Grams", "type": "number", "minimum": 0, "maximum": 5000},
                },
                "required": ["what", "grams"],
            }
        },
    },
    "moderation": _strict(
        flagged={"type": "boolean"},
        scores=_strict(violence=_SCORE, hate=_SCORE, self_harm=_SCORE),
        reason={"type": ["string", "null"], "maxLength": 80},
    ),
    "quiz question": _strict(
        question={"type": "string", "minLength": 5, "maxLength": 100},
        choices={"type": "array", "items": _SHORT, "minItems": 4, "maxItems": 4},
        answer={"type": "integer", "enum": [0, 1, 2, 3]},
    ),
    "summary": _strict(
        headline=_SHORT,
        points={"type": "array", "items": {"type": "string", "maxLength": 80}, "minItems": 1, "maxItems": 3},
        keywords={"type": "array", "items": {"type": "string", "pattern": "^[a-z]{3,12}$"}, "maxItems": 5},
    ),
}
