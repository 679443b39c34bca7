"""The format of an answer's text, as OpenAI's responses and Anthropic's messages have it."""

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


# As it was sent: OpenAI's answers repeat it.
AnswerFormat = Annotated[Data, AfterValidator(_known)]


def constrained_to(answer_format: dict[str, Any] | None, param: str) -> Constrained | None:
    """What an answer must match; `param` is the field to blame."""
    if answer_format is None or answer_format["type"] == "text":
        return None
    if answer_format["type"] == "json_object":
        return Constrained(Constraint("json_object"), param)
    return Constrained(named_schema(answer_format), param)


def named_schema(given: dict[str, Any]) -> Constraint:
    """The `schema` of `given`, which is as OpenAI has it. Raises `ValueError` where it cannot be written.

    Without `strict` keywords that cannot be enforced are left out, and all others are enforced: OpenAI's clients send
    what their types say, and vLLM's and SGLang's rely on what they have sent.
    """
    schema = given["schema"]
    return Constraint("json_schema", json_text(schema if given.get("strict") is True else best_effort(schema)))
