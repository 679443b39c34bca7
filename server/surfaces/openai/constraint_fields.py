"""The fields that constrain an answer, under the names of OpenAI, vLLM and SGLang."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Self, TypeAlias

from numaserve.server.generation.asked import Constrained
from numaserve.server.generation.constraint.answer_format import named_schema
from numaserve.server.http.fields.json_data import json_text
from numaserve.server.http.fields.types import Strict, conflict, whole_characters
from numaserve.server.structured.types import Constraint, ConstraintKind
from numaserve.server.surfaces.openai.constraint_shapes import FORMATS, OBJECT, OUTPUTS, TEXT, TEXTS
from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema, core_schema

_Read: TypeAlias = Callable[[Any], Constraint | None]  # raises ValueError


class Meaning:
    """The conversion of a field's value to a constraint, and the value's schema in the OpenAPI document."""

    def __init__(self, read: _Read, *kinds: dict[str, Any]) -> None:
        self._read = read
        self._kinds = kinds

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._check)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [*self._kinds, {"type": "null"}]}

    def _check(self, value: object) -> Constraint | None:
        constraint = None if value is None else self._read(value)
        if constraint is not None:
            whole_characters(constraint.text)
        return constraint


def _json(value: object, name: str) -> str:
    """Return the JSON text of `value`, which may be that text already."""
    if isinstance(value, str):
        return value
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be an object or its JSON text")
    return json_text(value)


def _of_text(kind: ConstraintKind) -> _Read:
    def read(value: Any) -> Constraint:
        if not isinstance(value, str):
            raise ValueError("the value must be a string")
        return Constraint(kind, value)

    return read


def read_schema(value: Any) -> Constraint:
    """Return the constraint of a JSON schema or its text. Raises `ValueError`."""
    return Constraint("json_schema", _json(value, "the schema"))


def _choice(value: Any) -> Constraint:
    if not isinstance(value, list) or not value or not all(isinstance(choice, str) for choice in value):
        raise ValueError("the value must be a list of at least one string")
    return Constraint("choice", json_text(value))


def _structural_tag(value: Any) -> Constraint:
    return Constraint("structural_tag", _json(value, "the structural tag"))


def _json_object(value: Any) -> Constraint | None:
    if not isinstance(value, bool):
        raise ValueError("'json_object' must be true or false")
    return Constraint("json_object") if value else None


def _response_format(value: Any) -> Constraint | None:
    kind = value.get("type") if isinstance(value, dict) else None
    match kind:
        case "text":
            return None
        case "json_object":
            return Constraint("json_object")
        case "json_schema":
            named = value.get("json_schema")
            if not isinstance(named, dict) or not isinstance(named.get("schema"), dict):
                raise ValueError("'json_schema' must be an object with a field 'schema' that is an object")
            return named_schema(named)
        case "structural_tag":
            return _structural_tag(value)
    raise ValueError("'type' must be 'text', 'json_object', 'json_schema' or 'structural_tag'")


_OUTPUTS: dict[str, _Read] = {
    "json": read_schema,
    "regex": _of_text("regex"),
    "choice": _choice,
    "grammar": _of_text("lark"),
    "structural_tag": _structural_tag,
    "json_object": _json_object,
}


def _structured_outputs(value: Any) -> Constraint | None:
    """Return the constraint of vLLM's object; its options are accepted only with values that change nothing."""
    if not isinstance(value, dict):
        raise ValueError("the value must be an object")
    given = {name: item for name, item in value.items() if item is not None and item is not False}
    if others := sorted(given.keys() - _OUTPUTS.keys()):
        raise ValueError(f"'{others[0][:64]}' is not supported; supported fields are {', '.join(_OUTPUTS)}")
    if len(given) != 1:
        raise ValueError(f"the object must have exactly one of {', '.join(_OUTPUTS)}")
    name, item = given.popitem()
    try:
        return _OUTPUTS[name](item)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


class SGLangConstraintFields(Strict):
    """SGLang's fields that constrain an answer; one of them at most."""

    json_schema: Annotated[Constraint | None, Meaning(read_schema, OBJECT, TEXT)] = None
    """Extension of SGLang: a JSON schema, as an object or as JSON text."""
    regex: Annotated[Constraint | None, Meaning(_of_text("regex"), TEXT)] = None
    """Extension of SGLang: a regular expression that the whole response must match."""
    ebnf: Annotated[Constraint | None, Meaning(_of_text("lark"), TEXT)] = None
    """Extension of SGLang: a grammar in GBNF or Lark syntax."""
    structural_tag: Annotated[Constraint | None, Meaning(_structural_tag, OBJECT, TEXT)] = None
    """Extension of SGLang: a structural tag, as an object or as JSON text."""

    @model_validator(mode="after")
    def _one_constraint_at_most(self) -> Self:
        given = self._given()
        if len(given) > 1:
            names = " and ".join(f"'{name}'" for name in given)
            raise conflict(given[1], f"{names} each constrain the output; set only one of them")
        return self

    def constrained(self) -> Constrained | None:
        """Return the constraint that the response must match; None without one."""
        given = self._given()
        return Constrained(getattr(self, given[0]), given[0]) if given else None

    def _given(self) -> list[str]:
        return [name for name in _FIELDS if getattr(self, name, None) is not None]


class ConstraintFields(SGLangConstraintFields):
    """All fields that constrain an answer; one of them at most."""

    response_format: Annotated[Constraint | None, Meaning(_response_format, *FORMATS)] = None
    """Format of the response: `text`, `json_object`, `json_schema` with a `schema` and optionally `strict`, or vLLM's
    `structural_tag`."""
    structured_outputs: Annotated[Constraint | None, Meaning(_structured_outputs, *OUTPUTS)] = None
    """Extension of vLLM: an object with exactly one of `json`, `regex`, `choice`, `grammar`, `structural_tag` and
    `json_object`."""
    guided_json: Annotated[Constraint | None, Meaning(read_schema, OBJECT, TEXT)] = None
    """Older extension of vLLM: a JSON schema, as an object or as JSON text."""
    guided_regex: Annotated[Constraint | None, Meaning(_of_text("regex"), TEXT)] = None
    """Older extension of vLLM: a regular expression that the whole response must match."""
    guided_choice: Annotated[Constraint | None, Meaning(_choice, TEXTS)] = None
    """Older extension of vLLM: the list of allowed responses."""
    guided_grammar: Annotated[Constraint | None, Meaning(_of_text("lark"), TEXT)] = None
    """Older extension of vLLM: a grammar in Lark or GBNF syntax."""


_FIELDS = tuple(ConstraintFields.model_fields)
