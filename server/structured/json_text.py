"""JSON that a client wrote, read within limits."""

import json
from collections.abc import Iterator
from typing import Any

from numaserve.server.structured.types import Limits, UnsupportedGrammar


def read_json(text: str, limits: Limits) -> Any:
    """The value that `text` says. Raises `UnsupportedGrammar` where it says none, or one too deep or too large."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise _too_deep(limits) from None
    except ValueError as error:
        raise UnsupportedGrammar(f"it is not JSON: {error}") from None
    _measure(value, limits)
    if "\\ud" in text.lower():  # an escape can say half of a character where the text itself cannot
        utf8(json.dumps(value, ensure_ascii=False))
    return value


def utf8(text: str) -> bytes:
    """The bytes of `text`. Raises `UnsupportedGrammar` where a part of it is no character."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise UnsupportedGrammar("the constraint contains a lone surrogate, which is not a valid character") from None


def levels(value: object) -> Iterator[list[object]]:
    """The values of JSON, level by level from `value` itself: a deep one would exhaust the stack of what recurs."""
    level = [value]
    while level:
        yield level
        inside: list[object] = []
        for item in level:
            inside += item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
        level = inside


def _measure(value: object, limits: Limits) -> None:
    """Refuse what is too deep or too much."""
    values = 0
    for depth, level in enumerate(levels(value)):
        if depth > limits.max_depth:
            raise _too_deep(limits)
        values += len(level)
        if values > limits.max_values:
            raise UnsupportedGrammar(f"the constraint has more than {limits.max_values} values")


def _too_deep(limits: Limits) -> UnsupportedGrammar:
    return UnsupportedGrammar(f"the constraint is nested more than {limits.max_depth} levels deep")
