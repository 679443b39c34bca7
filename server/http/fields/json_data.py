"""JSON inside a body, as data or as text: every accepted value can be written as JSON again.

Python's parser accepts more: NaN and infinities, half of a UTF-16 pair, and values nested too deeply for recursive
encoders.
"""

import json
from typing import Any

import msgspec
from numaserve.server.structured.json_text import levels
from numaserve.server.structured.types import Limits

MAX_DEPTH = Limits.max_depth


def data(value: dict[str, Any]) -> dict[str, Any]:
    """Return `value`. Raises `ValueError` if it cannot be written as JSON, or is nested deeper than `MAX_DEPTH`."""
    if any(depth > MAX_DEPTH for depth, _ in enumerate(levels(value))):
        raise ValueError(f"the value is nested more than {MAX_DEPTH} levels deep")
    json_text(value)
    return value


def json_text(value: dict[str, Any] | list[Any]) -> str:
    """Return the JSON text of `value`. Raises `ValueError` if it has none."""
    try:
        # msgspec writes null for NaN.
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
    """Return the object in `text`; an empty one for an empty text. Raises `ValueError` for other text, and as
    `data`."""
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ValueError("the text must be a JSON object")
    return data(value)


def arguments_of(text: str) -> dict[str, Any]:
    """Return the arguments of a call in a conversation; text that is no object becomes `{"arguments": text}`.

    Such text occurs if a limit has cut off the call. The result is always an object, because many templates iterate
    over it. Refusing such text was rejected: the model wrote it, and clients send it back.
    """
    try:
        return object_of(text)
    except ValueError:
        return {"arguments": text}


def raw_object(text: str, otherwise: str) -> msgspec.Raw:
    """Return an object that a model has written, unchanged; other text becomes an object with the text under
    `otherwise`."""
    try:
        msgspec.json.decode(text or "{}", type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):
        return msgspec.Raw(msgspec.json.encode({otherwise: text}))
    return msgspec.Raw((text or "{}").encode())  # unchanged: numbers may have more digits than Python's encoder writes
