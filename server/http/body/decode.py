"""Decoding a body: from bytes to a validated request, in this process or in another.

The other process validates a body and sends plain data; this process builds the request without validating it again.
"""

import json
from functools import cache
from typing import Annotated, Any, TypeVar, get_args, get_origin

import msgspec
from numaserve.server.http.body.opaque import TakenOut
from numaserve.server.http.explain import NOT_JSON, Problem, explain
from numaserve.server.http.fields.types import Strict
from numaserve.server.http.fields.unknown_fields import UnknownFields
from pydantic import ValidationError

_EXACT = 2**53  # larger floats may differ from the number in the text

Body = TypeVar("Body", bound=Strict)


class BodyProblem(Exception):
    """A body that cannot be served; `problem` says why."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class Decoded(msgspec.Struct, frozen=True):
    """A validated body as data, or the problem with it."""

    fields: dict[str, Any] = {}
    ignored_names: list[str] = []
    ignored_count: int = 0
    problem: Problem | None = None
    text_bytes: int = 0  # of the body without its opaque texts
    opaque: list[str] = []  # the opaque texts, which other messages carry


def decode(model: type[Body], data: bytes, unknown: UnknownFields) -> Body:
    """Return the request in `data`. Raises `BodyProblem`."""
    try:
        values = json.loads(data, parse_float=_number)
    except (ValueError, RecursionError):
        raise BodyProblem(NOT_JSON) from None
    try:
        return model.model_validate(values, context=unknown)
    except ValidationError as error:
        # Without links and input: for a long body either takes seconds.
        errors = error.errors(include_url=False, include_input=False)
        raise BodyProblem(explain([{**errors[0], "loc": ("body", *errors[0]["loc"])}])) from None


def _number(text: str) -> float:
    """Return a number with a point or an exponent. In JSON Schema 16.0 is an integer, and some languages write integers
    so."""
    value = float(text)
    return int(value) if value.is_integer() and abs(value) <= _EXACT else value


def to_data(body: Strict) -> dict[str, Any]:
    """Return the fields that were set, without the classes of their values."""
    values = ((name, getattr(body, name)) for name in body.model_fields_set)
    return {name: to_data(value) if isinstance(value, Strict) else value for name, value in values}


def from_data(model: type[Body], data: dict[str, Any], opaque: TakenOut) -> Body:
    """Return the request for validated data, whose `opaque` texts were taken out; the inverse of `to_data`."""
    values = {name: _typed(_class_of(model, name), value, opaque) for name, value in data.items()}
    return model.model_construct(set(data), **values)


def _typed(kind: type[Strict] | type[msgspec.Struct] | None, value: Any, opaque: TakenOut) -> Any:
    if kind is None or value is None:
        return value
    if issubclass(kind, Strict):
        return from_data(kind, value, opaque)
    return msgspec.convert(value, kind, dec_hook=opaque.decode)


@cache
def _class_of(model: type[Strict], name: str) -> type[Strict] | type[msgspec.Struct] | None:
    """Return the class of a field's value if it is a class of this server."""
    annotation = model.model_fields[name].annotation
    for alternative in (annotation, *get_args(annotation)):
        kind = get_args(alternative)[0] if get_origin(alternative) is Annotated else alternative
        if isinstance(kind, type) and issubclass(kind, Strict | msgspec.Struct):
            return kind
    return None
