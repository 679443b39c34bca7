"""Tools in the body of POST /v1/chat/completions, and OpenAI's older functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from numaserve.server.api.fields import Data, Strict, Text
from numaserve.server.api.generation.asked import ToolUse
from numaserve.server.api.tool_fields import MAX_TOOLS, ToolName, distinct, tool_data
from numaserve.server.api.typed import word_or_object
from numaserve.server.tools.types import Tool
from pydantic import AfterValidator, Discriminator, Field, Tag


class FunctionDefinition(Strict):
    """A function that the model may call."""

    name: ToolName
    """Letters, digits and `_.:/-`."""
    description: Text | None = None
    """What it does, for the model."""
    parameters: Data | None = None
    """The JSON schema of its arguments; none unless set."""
    strict: bool | None = None
    """Whether arguments always fit the schema; false unless set."""

    def tool(self) -> dict[str, Any]:
        """The function as the data of a `Tool`."""
        return tool_data(self.name, self.description, self.parameters, self.strict)


class FunctionTool(Strict):
    """A tool; the only kind is a function."""

    type: Literal["function"]
    function: FunctionDefinition


class NamedFunction(Strict):
    """The name of a function."""

    name: ToolName


class NamedTool(Strict):
    """A tool, by its name."""

    type: Literal["function"]
    function: NamedFunction


def _tools(given: Sequence[FunctionTool]) -> list[dict[str, Any]]:
    return distinct([each.function.tool() for each in given])


def _functions(given: Sequence[FunctionDefinition]) -> list[dict[str, Any]]:
    return distinct([each.tool() for each in given])


def _named(choice: NamedTool) -> dict[str, str]:
    return {"name": choice.function.name}


def _named_function(choice: NamedFunction) -> dict[str, str]:
    return {"name": choice.name}


Tools = Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS), AfterValidator(_tools)]
Functions = Annotated[list[FunctionDefinition], Field(max_length=MAX_TOOLS), AfterValidator(_functions)]
ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("[word]")]
    | Annotated[NamedTool, AfterValidator(_named), Tag("[object]")],
    Discriminator(word_or_object),
]
FunctionChoice = Annotated[
    Annotated[Literal["none", "auto"], Tag("[word]")]
    | Annotated[NamedFunction, AfterValidator(_named_function), Tag("[object]")],
    Discriminator(word_or_object),
]


def tool_use(tools: Sequence[Any], choice: Any, *, parallel: bool) -> ToolUse:
    """What is asked of tools, by fields that were checked."""
    given = tuple(Tool(**each) for each in tools)
    if isinstance(choice, dict):
        return ToolUse(given, "required", choice["name"], parallel)
    return ToolUse(given, choice or "auto", parallel=parallel)
