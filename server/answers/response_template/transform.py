"""The transform of a field: the shape of its value, with placeholders such as "{content.name}" for parsed values."""

import re
from collections.abc import Mapping
from typing import Any

from numaserve.server.answers.response_template.errors import BadTemplate, Unreadable

_PLACEHOLDER = re.compile(r"\{(\w+(?:\.\w+)*)\}")


def check_transform(shape: object, where: str) -> None:
    """Raise `BadTemplate` if a string of `shape` mixes a placeholder with other text, which `transformed` does not
    replace."""
    if isinstance(shape, str):
        if _PLACEHOLDER.search(shape) and not _PLACEHOLDER.fullmatch(shape):
            raise BadTemplate(
                f"{where}: a string in transform mixes a placeholder with other text; "
                "a placeholder must be the whole string"
            )
        return
    parts = shape.values() if isinstance(shape, dict) else shape if isinstance(shape, list) else ()
    for part in parts:
        check_transform(part, where)


def transformed(shape: Any, known: Mapping[str, Any]) -> Any:
    """Return `shape` with the values of its placeholders, which keep their types. Raises `Unreadable` if one is
    missing."""
    if isinstance(shape, dict):
        return {key: transformed(part, known) for key, part in shape.items()}
    if isinstance(shape, list):
        return [transformed(part, known) for part in shape]
    placeholder = _PLACEHOLDER.fullmatch(shape) if isinstance(shape, str) else None
    if placeholder is None:
        return shape
    value: Any = known
    for key in placeholder[1].split("."):
        if not isinstance(value, Mapping) or key not in value:
            raise Unreadable
        value = value[key]
    return value
