"""JSON schemas for llguidance, with bounds where a model could otherwise generate without end.

Neither bound admits text that the schema forbids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

# A line end and ten levels of indentation by two; a schema's own `x-guidance` overrides it.
JSON_OPTIONS: JsonCompileOptions = {"whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,21}"}
# Seconds may have a fraction of any length, and the numbers of a duration any number of digits.
_LONGEST = {"time": 24, "date-time": 35, "duration": 32}
# The lexer has about five states per character of a text with a `maxLength`, and 50,000 in all.
_LONGEST_TEXT = 10_000
_VALUES = frozenset({"const", "enum", "default", "examples", "example"})  # their values are not schemas
_OPTIONS_KEY = "x-guidance"


def best_effort(schema: dict[str, Any]) -> dict[str, Any]:
    """Return `schema` with an option that skips keywords that cannot be enforced instead of refusing them."""
    return _with_options({"lenient": True}, schema)


def with_bounds(schema: dict[str, Any]) -> dict[str, Any]:
    """Return `schema` as it is compiled: with the bounds that it does not set itself."""
    return _with_options({**JSON_OPTIONS}, _bounded(schema))


def _with_options(options: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    given = schema.get(_OPTIONS_KEY, {})
    return {**schema, _OPTIONS_KEY: options | given if isinstance(given, dict) else given}


def _bounded(schema: Any) -> Any:
    """Return `schema` with a `maxLength` for each format without a maximum length, and no `maxLength` above
    `_LONGEST_TEXT`."""
    if isinstance(schema, list):
        return [_bounded(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {name: item if name in _VALUES else _bounded(item) for name, item in schema.items()}
    kind = schema.get("format")
    if isinstance(kind, str) and kind in _LONGEST:
        inner.setdefault("maxLength", _LONGEST[kind])
    longest = inner.get("maxLength")
    if isinstance(longest, int | float) and longest > _LONGEST_TEXT:
        inner["maxLength"] = _LONGEST_TEXT
    return inner
