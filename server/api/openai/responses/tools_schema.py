"""Tools in the body of POST /v1/responses, where they have no `function` inside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from numaserve.server.api.fields import Unused, made_of
from numaserve.server.api.openai.tools_schema import FunctionDefinition, NamedFunction
from numaserve.server.api.tool_fields import MAX_TOOLS, distinct
from numaserve.server.api.typed import only_types, word_or_object
from pydantic import Discriminator, Field, Tag

_OF_OPENAI = dict.fromkeys(
    (
        "apply_patch",
        "code_interpreter",
        "computer",
        "computer_use_preview",
        "custom",
        "file_search",
        "image_generation",
        "local_shell",
        "mcp",
        "shell",
        "web_search",
        "web_search_preview",
    ),
    "tools of other types than 'function'",
)


class ResponseTool(FunctionDefinition):
    """A function that the model may call."""

    type: Literal["function"]
    defer_loading: Unused = None
    allowed_callers: Unused = None
    output_schema: Unused = None


class NamedResponseTool(NamedFunction):
    """A function, by its name."""

    type: Literal["function"]


def _tools(given: Sequence[ResponseTool]) -> list[dict[str, Any]]:
    return distinct([each.tool() for each in given])


def _choice(choice: str | NamedResponseTool) -> str | dict[str, str]:
    return choice if isinstance(choice, str) else {"name": choice.name}


_Tool = Annotated[ResponseTool, only_types(("function",), _OF_OPENAI)]
ResponseTools = Annotated[list[dict[str, Any]], made_of(Annotated[list[_Tool], Field(max_length=MAX_TOOLS)], _tools)]
_Choice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("[word]")] | Annotated[NamedResponseTool, Tag("[object]")],
    Discriminator(word_or_object),
]
ResponseToolChoice = Annotated[str | dict[str, str], made_of(_Choice, _choice)]
