"""JSON that a client wrote, read within limits."""

import json
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
        _refuse_halves(value)
    return value


def _refuse_halves(value: object) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise UnsupportedGrammar("it has half of a surrogate pair, which is no character") from None


def _measure(value: object, limits: Limits) -> None:
    """Refuse what is too deep or too much, level by level: the value is what would exhaust a stack."""
    level, values = [value], 1
    for _ in range(limits.max_depth + 1):
        children: list[object] = []
        for item in level:
            children += item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
        if not children:
            return
        level, values = children, values + len(children)
        if values > limits.max_values:
            raise UnsupportedGrammar(f"it has more than {limits.max_values} values")
    raise _too_deep(limits)


def _too_deep(limits: Limits) -> UnsupportedGrammar:
    return UnsupportedGrammar(f"it nests deeper than {limits.max_depth} levels")
