"""The decoding of the body fields that the gateway reads."""

from typing import TypeVar

import msgspec
from numaserve.server.http.errors import bad_request, from_problem
from numaserve.server.http.explain import NOT_JSON

T = TypeVar("T")


def decoded(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """Return the fields of a body that names a model. Raises `ApiError`."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise bad_request(f"The body must be a JSON object with a string as 'model': {error}.", "model") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise from_problem(NOT_JSON) from None
