"""Tools in the body of POST /v1/chat/completions, and OpenAI's older functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from numaserve.server.http.fields.typed import word_or_object, word_or_type
from numaserve.server.http.fields.types import Data, Strict, Text, made_of
from numaserve.server.surfaces.tool_fields import (
    MAX_TOOLS,
    Choice,
    ToolName,
    distinct,
    kept,
    left_out_unless,
    tool_data,
)
from pydantic import Discriminator, Field, Tag


class FunctionDefinition(Strict):
    """A function that the model can call."""

    name: ToolName
    """Letters, digits and `_.:/-`."""
    description: Text | None = None
    """Description of the function for the model."""
    parameters: Data | None = None
    """JSON schema of the arguments; none unless set."""
    strict: bool | None = None
    """Guarantee that arguments match the schema; false unless set."""

    def tool(self) -> dict[str, Any]:
        """Return the function as the data of a `Tool`."""
        return tool_data(self.name, self.description, self.parameters, self.strict)


class FunctionTool(Strict):
    """A tool that is a function."""

    type: Literal["function"]
    function: FunctionDefinition


class NamedFunction(Strict):
    """The name of a function."""

    name: ToolName


class NamedTool(Strict):
    """A tool, identified by its name."""

    type: Literal["function"]
    function: NamedFunction

    def choice(self) -> Choice:
        """Return the choice of this tool."""
        return Choice.named(self.function.name)


class AllowedTools(Strict):
    """The tools that the response can call, and whether a call is required."""

    mode: Literal["auto", "required"]
    """`required` makes the response call at least one of the tools."""
    tools: Annotated[list[NamedTool], Field(min_length=1, max_length=MAX_TOOLS)]
    """Tools that the response can call."""


class AllowedToolsChoice(Strict):
    """A list of tool names that the response can call; the prompt still contains all tools."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools

    def choice(self) -> Choice:
        """Return the choice of these tools."""
        allowed = self.allowed_tools
        return Choice(allowed.mode, tuple(tool.function.name for tool in allowed.tools))


def _tools(given: Sequence[FunctionTool | None]) -> list[dict[str, Any]]:
    return distinct([each.function.tool() for each in kept(given)])


def _functions(given: Sequence[FunctionDefinition]) -> list[dict[str, Any]]:
    return distinct([each.tool() for each in given])


def _choice(given: str | NamedTool | AllowedToolsChoice) -> Choice:
    return Choice(given) if isinstance(given, str) else given.choice()  # type: ignore[arg-type]


def _function_choice(given: str | NamedFunction) -> Choice:
    return Choice(given) if isinstance(given, str) else Choice.named(given.name)  # type: ignore[arg-type]


_Tool = Annotated[FunctionTool, left_out_unless("function")]
Tools = Annotated[list[dict[str, Any]], made_of(Annotated[list[_Tool], Field(max_length=MAX_TOOLS)], _tools)]
Functions = Annotated[
    list[dict[str, Any]], made_of(Annotated[list[FunctionDefinition], Field(max_length=MAX_TOOLS)], _functions)
]
_Choice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("[word]")]
    | Annotated[NamedTool, Tag("[function]")]
    | Annotated[AllowedToolsChoice, Tag("[allowed_tools]")],
    Discriminator(word_or_type),
]
ToolChoice = Annotated[Choice, made_of(_Choice, _choice)]
_FunctionChoice = Annotated[
    Annotated[Literal["none", "auto"], Tag("[word]")] | Annotated[NamedFunction, Tag("[object]")],
    Discriminator(word_or_object),
]
FunctionChoice = Annotated[Choice, made_of(_FunctionChoice, _function_choice)]
