"""Tools in the body of POST /v1/chat/completions, and OpenAI's older functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from numaserve.server.api.fields import Strict, Text, conflict
from numaserve.server.api.generation.asked import ToolUse
from numaserve.server.tools.types import Tool
from pydantic import AfterValidator, Discriminator, Field, StringConstraints, Tag

MAX_TOOLS = 256
MAX_DEPTH = 64  # of a schema; whatever reads one is recursive
# OpenAI's rule, and the dots, slashes and colons that names of MCP servers bring.
ToolName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.:/-]{1,128}$")]


def shallow(schema: dict[str, Any]) -> dict[str, Any]:
    """`schema`, unless it nests more deeply than `MAX_DEPTH`: then raises `ValueError`."""
    level: list[Any] = [schema]
    for _ in range(MAX_DEPTH):
        inside = (value.values() if isinstance(value, dict) else value for value in level)
        level = [value for values in inside for value in values if isinstance(value, dict | list)]
        if not level:
            return schema
    raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep")


class FunctionDefinition(Strict):
    """A function that the model may call."""

    name: ToolName
    """Letters, digits and `_.:/-`."""
    description: Text | None = None
    """What it does, for the model."""
    parameters: Annotated[dict[str, Any], AfterValidator(shallow)] | None = None
    """The JSON schema of its arguments; none unless set."""
    strict: bool | None = None
    """Whether arguments always fit the schema; false unless set."""

    def tool(self) -> dict[str, Any]:
        """The function as the data of a `Tool`: a long body is checked in another process."""
        return {
            "name": self.name,
            "description": self.description or "",
            "parameters": self.parameters,
            "strict": self.strict is True,
        }


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


def _distinct(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    names = {tool["name"] for tool in tools}
    if len(names) != len(tools):
        raise conflict("name", "two tools have the same name")
    return tools


def _tools(given: Sequence[FunctionTool]) -> list[dict[str, Any]]:
    return _distinct([each.function.tool() for each in given])


def _functions(given: Sequence[FunctionDefinition]) -> list[dict[str, Any]]:
    return _distinct([each.tool() for each in given])


def _kind_of_choice(choice: object) -> str:
    return "[name]" if isinstance(choice, dict) else "[word]"


def _named(choice: NamedTool) -> dict[str, str]:
    return {"name": choice.function.name}


def _named_function(choice: NamedFunction) -> dict[str, str]:
    return {"name": choice.name}


Tools = Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS), AfterValidator(_tools)]
Functions = Annotated[list[FunctionDefinition], Field(max_length=MAX_TOOLS), AfterValidator(_functions)]
ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("[word]")]
    | Annotated[NamedTool, AfterValidator(_named), Tag("[name]")],
    Discriminator(_kind_of_choice),
]
FunctionChoice = Annotated[
    Annotated[Literal["none", "auto"], Tag("[word]")]
    | Annotated[NamedFunction, AfterValidator(_named_function), Tag("[name]")],
    Discriminator(_kind_of_choice),
]


def tool_use(tools: Sequence[Any], choice: Any, *, parallel: bool) -> ToolUse:
    """What is asked of tools, by fields that were checked."""
    given = tuple(Tool(**each) for each in tools)
    if isinstance(choice, dict):
        return ToolUse(given, "required", choice["name"], parallel)
    return ToolUse(given, choice or "auto", parallel=parallel)
