"""JSON from clients, parsed within limits."""

import json
from collections.abc import Iterator
from typing import Any

from numaserve.server.structured.types import Limits, UnsupportedGrammar


def read_json(text: str, limits: Limits) -> Any:
    """Return the value in `text`. Raises `UnsupportedGrammar` if it is not JSON, too deep or too large."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise _too_deep(limits) from None
    except ValueError as error:
        raise UnsupportedGrammar(f"it is not JSON: {error}") from None
    _measure(value, limits)
    if "\\ud" in text.lower():  # an escape can spell a lone surrogate, which the text itself cannot contain
        utf8(json.dumps(value, ensure_ascii=False))
    return value


def utf8(text: str) -> bytes:
    """Return the bytes of `text`. Raises `UnsupportedGrammar` if it contains a lone surrogate."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise UnsupportedGrammar("the constraint contains a lone surrogate, which is not a valid character") from None


def levels(value: object) -> Iterator[list[object]]:
    """Yield the values of JSON level by level, starting with `value`: recursion on a deep value would exhaust the
    stack."""
    level = [value]
    while level:
        yield level
        inside: list[object] = []
        for item in level:
            inside += item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
        level = inside


def _measure(value: object, limits: Limits) -> None:
    """Raise `UnsupportedGrammar` for a value that is too deep or too large."""
    values = 0
    for depth, level in enumerate(levels(value)):
        if depth > limits.max_depth:
            raise _too_deep(limits)
        values += len(level)
        if values > limits.max_values:
            raise UnsupportedGrammar(f"the constraint has more than {limits.max_values} values")


def _too_deep(limits: Limits) -> UnsupportedGrammar:
    return UnsupportedGrammar(f"the constraint is nested more than {limits.max_depth} levels deep")
