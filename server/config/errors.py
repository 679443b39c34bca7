"""The error messages for a configuration: one line that names the key and the allowed values."""

import difflib
from collections.abc import Mapping
from typing import Any, TypeVar

from numaserve.workers.interface.errors import OperatorError
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

_FEW = 12  # maximum number of keys that a line lists

Kind = TypeVar("Kind", bound=BaseModel)


def validated(kind: type[Kind], values: Mapping[str, Any], where: str) -> Kind:
    """Return the object of `values`. Raises `OperatorError`, whose message begins with `where`."""
    fields: Mapping[str, FieldInfo] = kind.model_fields
    for key in values:
        if key not in fields:
            raise OperatorError(where + unknown_key(key, fields))
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        raise OperatorError(where + explain_value(str(first["loc"][0]), first, fields)) from None


def unknown_key(key: str, keys: Mapping[str, FieldInfo]) -> str:
    """Return the line for a key that is not one of `keys`."""
    close = difflib.get_close_matches(key, keys, n=1, cutoff=0.5)
    if close:
        hint = f"did you mean '{close[0]}'?"
    else:
        hint = f"the keys are {', '.join(keys)}" if len(keys) <= _FEW else "docs/options.md lists the keys"
    return f"unknown key '{key}': {hint}"


def explain_value(key: str, error: Any, keys: Mapping[str, FieldInfo]) -> str:
    """Return the line for a pydantic error on `key`, one of `keys`."""
    if error["type"] == "missing":
        return f"'{key}' is not set: set it on the command line or in the configuration file"
    allowed = "" if error["type"] == "value_error" else _allowed_range(keys[key])
    message = error["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    reason = allowed or message
    value = repr(str(error["input"])[:80])
    return f"{key} {reason}, not {value}" if reason.startswith("must ") else f"{key} {value} {reason}"


def _allowed_range(field: FieldInfo) -> str:
    """Return the bounds of a numeric key, as in 'must be between 1 and 64'."""
    bounds: dict[str, Any] = {}
    for constraint in field.metadata:
        for name in ("ge", "gt", "le"):
            if hasattr(constraint, name):
                bounds[name] = getattr(constraint, name)
    if "ge" in bounds:
        return (
            f"must be between {bounds['ge']} and {bounds['le']}"
            if "le" in bounds
            else f"must be at least {bounds['ge']}"
        )
    if "gt" in bounds:
        return f"must be above {bounds['gt']} and at most {bounds['le']}"
    return ""
