"""The error messages for a configuration: one line that names the key and the allowed values."""

import difflib
from collections.abc import Mapping
from typing import Any

from pydantic.fields import FieldInfo

_FEW = 12  # maximum number of keys that a line lists


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
