"""Problems of a request, explained to its sender without repeating the input."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Problem:
    """One problem of a request; `param` is the field at fault, None for the whole body."""

    message: str
    param: str | None
    code: str | None = None


# The error type of rules that JSON Schema cannot express; the OpenAPI document omits them.
CONFLICT = "conflicting_fields"

NOT_JSON = Problem("The body is not valid JSON.", None)
NOT_AN_OBJECT = Problem("The body must be a JSON object, sent with 'Content-Type: application/json'.", None)


def explain(errors: Sequence[Mapping[str, Any]]) -> Problem:
    """Return the first of pydantic's errors. A location begins with the source of the value, such as ``body`` or
    ``query``."""
    first = errors[0]
    kind = str(first["type"])
    if kind == "json_invalid":
        return NOT_JSON
    location = param_of(first["loc"])
    if kind == "conflict":
        return Problem(f"{first['msg']}.", _inside(location, first["ctx"]["param"]), CONFLICT)
    if kind == "unknown_field":
        param = _inside(location, first["ctx"]["name"][:64])
        meant = first["ctx"]["meant"]
        hint = f"did you mean '{meant}'?" if meant else "this server accepts no unknown fields. Remove the field."
        return Problem(f"Unknown field: {param}; {hint}", param, "unknown_parameter")
    if location is None:
        return NOT_AN_OBJECT
    if kind == "missing":
        return Problem(f"Missing required field: {location}.", location, "missing_required_parameter")
    message = str(first["msg"]).removeprefix("Value error, ")
    return Problem(f"Invalid value for '{location}': {message}.", location, "invalid_value")


def param_of(location: Sequence[str | int]) -> str | None:
    """Return the field of an error, such as ``messages[0].content``; None for the whole body.

    Tags of union branches, which have brackets here, are left out. The path ends before pydantic's names of branches
    without a tag. Neither means anything to a client.
    """
    param = ""
    for part in location[1:]:
        if isinstance(part, int):
            param += f"[{part}]" if param else ""
        elif part.startswith("[") and part.endswith("]"):
            continue
        elif part.isidentifier() and part not in ("str", "int"):
            param += f".{part}" if param else part
        else:
            # The key of a mapping, or an unknown field that is no identifier; both are the client's own text.
            param = param or part[:64]
            break
    return param[:256] or None


def _inside(location: str | None, name: str) -> str:
    return ".".join(part for part in (location, name) if part)
