"""JSON that came inside of a body, as data or as text: what is taken can be written again, by whatever writes it.

Python reads more than that: NaN and infinities, half of a UTF-16 pair, and values so deep that nothing recursive
writes them.
"""

import json
from typing import Any

import msgspec
from numaserve.server.structured.json_text import levels
from numaserve.server.structured.types import Limits

MAX_DEPTH = Limits.max_depth


def data(value: dict[str, Any]) -> dict[str, Any]:
    """`value`. Raises `ValueError` where it cannot be written, or nests more deeply than `MAX_DEPTH`."""
    if any(depth > MAX_DEPTH for depth, _ in enumerate(levels(value))):
        raise ValueError(f"the value is nested more than {MAX_DEPTH} levels deep")
    json_text(value)
    return value


def json_text(value: dict[str, Any] | list[Any]) -> str:
    """The JSON text of `value`. Raises `ValueError` where it has none."""
    try:
        # Not msgspec's, which writes null for NaN.
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("a string contains a lone surrogate, which is not a valid character") from None
    except RecursionError:
        raise ValueError("the value is nested too deeply") from None
    except ValueError:
        raise ValueError("a number is not finite, or has thousands of digits") from None
    return text


def object_of(text: str) -> dict[str, Any]:
    """The object that `text` says, an empty one for no text. Raises `ValueError` where it says none, and as `data`."""
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ValueError("the text must be a JSON object")
    return data(value)


def arguments_of(text: str) -> dict[str, Any]:
    """The arguments of a call in a conversation; text that is no object, such as that of a call which a limit has cut
    off, becomes `{"arguments": text}`.

    An object in any case: many templates iterate over it. Refusing such text was rejected, as the model wrote it, and
    clients send what it wrote.
    """
    try:
        return object_of(text)
    except ValueError:
        return {"arguments": text}


def raw_object(text: str, otherwise: str) -> msgspec.Raw:
    """The object that a model has written, as it is; what is none, as an object with the text under `otherwise`."""
    try:
        msgspec.json.decode(text or "{}", type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):
        return msgspec.Raw(msgspec.json.encode({otherwise: text}))
    return msgspec.Raw((text or "{}").encode())  # as it is: numbers may have more digits than Python's encoder writes
