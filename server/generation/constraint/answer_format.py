"""The format of an answer's text, in the notation of OpenAI's responses and Anthropic's messages."""

from typing import Annotated, Any

from numaserve.server.generation.asked import Constrained
from numaserve.server.http.fields.json_data import json_text
from numaserve.server.http.fields.types import Data, conflict
from numaserve.server.structured.json_schema import best_effort
from numaserve.server.structured.types import Constraint
from pydantic import AfterValidator


def _known(value: dict[str, Any]) -> dict[str, Any]:
    kind = value.get("type")
    if kind == "json_schema" and not isinstance(value.get("schema"), dict):
        raise conflict("schema", "the type 'json_schema' needs a field 'schema' that is an object")
    if kind not in ("text", "json_object", "json_schema"):
        raise conflict("type", "the type must be 'text', 'json_object' or 'json_schema'")
    return value


# Unchanged, because OpenAI's answers repeat it.
AnswerFormat = Annotated[Data, AfterValidator(_known)]


def constrained_to(answer_format: dict[str, Any] | None, param: str) -> Constrained | None:
    """Return the constraint of an answer; `param` is the field to blame in an error."""
    if answer_format is None or answer_format["type"] == "text":
        return None
    if answer_format["type"] == "json_object":
        return Constrained(Constraint("json_object"), param)
    return Constrained(named_schema(answer_format), param)


def named_schema(given: dict[str, Any]) -> Constraint:
    """Return the constraint for the `schema` of `given`, in OpenAI's notation. Raises `ValueError` where the schema is
    not JSON.

    Without `strict`, keywords that cannot be enforced are left out, and all others are enforced. OpenAI's clients send
    whatever their types generate; vLLM's and SGLang's clients rely on the schema that they sent.
    """
    schema = given["schema"]
    return Constraint("json_schema", json_text(schema if given.get("strict") is True else best_effort(schema)))
