"""Tools in the body of POST /v1/messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from numaserve.server.http.fields.typed import kind_of
from numaserve.server.http.fields.types import Data, Strict, Text, Unused, conflict, made_of
from numaserve.server.surfaces.anthropic.client_tools import CLIENT_TOOLS, client_tool
from numaserve.server.surfaces.tool_fields import (
    MAX_TOOLS,
    Choice,
    ToolName,
    distinct,
    kept,
    left_out_unless,
    tool_data,
)
from pydantic import Discriminator, Field, StringConstraints, Tag, model_validator

_MAX_EXAMPLES = 64


_OURS, _THEIRS = "[custom]", "[client]"


def _tag(value: object) -> str:
    return _OURS if kind_of(value) in (None, "custom") else _THEIRS


class InputTool(Strict):
    """A function that the model can call."""

    name: ToolName
    """Letters, digits and `_.:/-`."""
    description: Text | None = None
    """Description of the function for the model."""
    input_schema: Data
    """JSON schema of the input."""
    type: Literal["custom"] | None = None
    strict: bool | None = None
    """Guarantee that inputs match the schema; false unless set."""
    input_examples: Annotated[list[Data], Field(max_length=_MAX_EXAMPLES)] | None = None
    """No effect."""
    cache_control: Unused = None
    defer_loading: Unused = None
    allowed_callers: Unused = None
    eager_input_streaming: Unused = None

    def data(self) -> dict[str, Any]:
        """Return the function as the data of a `Tool`."""
        return tool_data(self.name, self.description, self.input_schema, self.strict)


class ClientTool(Strict):
    """A tool that Anthropic defines and the client runs: bash, text editor or memory."""

    type: Annotated[str, StringConstraints(max_length=64)]
    """Kind of the tool with a version date: `bash_…`, `text_editor_…` or `memory_…`."""
    name: ToolName
    """Name that Anthropic defines for the tool."""
    max_characters: Unused = None
    cache_control: Unused = None
    defer_loading: Unused = None
    allowed_callers: Unused = None
    input_examples: Unused = None
    strict: Unused = None

    def data(self) -> dict[str, Any]:
        """Return the function as the data of a `Tool`."""
        return tool_data(self.name, *client_tool(self.type), strict=False)


class ToolChoice(Strict):
    """The rule that allows, requires or forbids tool calls."""

    type: Literal["auto", "any", "tool", "none"]
    """`auto`: the model decides. `any`: at least one call. `tool`: a call of the tool in `name`. `none`: no call."""
    name: ToolName | None = None
    """Name of the tool to call; required with the type `tool`."""
    disable_parallel_tool_use: bool | None = None
    """Allow at most one call per response; false unless set."""

    @model_validator(mode="after")
    def _only_a_tool_has_a_name(self) -> ToolChoice:
        if (self.type == "tool") != (self.name is not None):
            raise conflict("name", "'name' is required with the type 'tool' and not allowed with other types")
        return self

    @property
    def meant(self) -> Choice:
        """The choice in the terms that all surfaces share."""
        one = self.disable_parallel_tool_use is True
        match self.type:
            case "tool":
                return Choice.named(self.name or "")
            case "any":
                return Choice("required", one=one)
            case _:
                return Choice(self.type, one=one)


def _tools(given: Sequence[InputTool | ClientTool | None]) -> list[dict[str, Any]]:
    tools: list[InputTool | ClientTool] = kept(given)
    return distinct([each.data() for each in tools])


_Tool = Annotated[
    Annotated[InputTool, Tag(_OURS)] | Annotated[ClientTool, Tag(_THEIRS)],
    Discriminator(_tag),
    left_out_unless("custom", prefixes=CLIENT_TOOLS, default="custom"),
]
Tools = Annotated[list[dict[str, Any]], made_of(Annotated[list[_Tool], Field(max_length=MAX_TOOLS)], _tools)]
