"""Tools in the body of POST /v1/messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from numaserve.server.api.fields import Data, Strict, Text, Unused, conflict, made_of
from numaserve.server.api.generation.asked import ToolUse
from numaserve.server.api.tool_fields import MAX_TOOLS, ToolName, distinct, tool_data
from numaserve.server.tools.types import Tool
from pydantic import BeforeValidator, Field, model_validator

_MAX_EXAMPLES = 64


def _is_ours(value: object) -> object:
    if isinstance(value, dict) and value.get("type") not in (None, "custom"):
        raise ValueError("the server has no tools of its own; the only type is 'custom'")
    return value


class InputTool(Strict):
    """A function that the model may call."""

    name: ToolName
    """Letters, digits and `_.:/-`."""
    description: Text | None = None
    """What it does, for the model."""
    input_schema: Data
    """The JSON schema of its input."""
    type: Literal["custom"] | None = None
    strict: bool | None = None
    """Whether inputs always fit the schema; false unless set."""
    input_examples: Annotated[list[Data], Field(max_length=_MAX_EXAMPLES)] | None = None
    """Without effect."""
    cache_control: Unused = None
    defer_loading: Unused = None
    allowed_callers: Unused = None
    eager_input_streaming: Unused = None

    def data(self) -> dict[str, Any]:
        """The function as the data of a `Tool`."""
        return tool_data(self.name, self.description, self.input_schema, self.strict)


class ToolChoice(Strict):
    """Which tools an answer calls."""

    type: Literal["auto", "any", "tool", "none"]
    """`any`: some; `tool`: the one that is named."""
    name: ToolName | None = None
    """The tool to call, with the type `tool`."""
    disable_parallel_tool_use: bool | None = None
    """Whether an answer has at most one call; false unless set."""

    @model_validator(mode="after")
    def _only_a_tool_has_a_name(self) -> ToolChoice:
        if (self.type == "tool") != (self.name is not None):
            raise conflict("name", "'name' is for the type 'tool', which needs it")
        return self

    @property
    def demands(self) -> bool:
        """Whether there must be a call."""
        return self.type in {"any", "tool"}


def _tools(given: Sequence[InputTool]) -> list[dict[str, Any]]:
    return distinct([each.data() for each in given])


Tools = Annotated[
    list[dict[str, Any]],
    made_of(Annotated[list[Annotated[InputTool, BeforeValidator(_is_ours)]], Field(max_length=MAX_TOOLS)], _tools),
]


def tool_use(tools: Sequence[dict[str, Any]], choice: ToolChoice | None) -> ToolUse:
    """What is asked of tools, by fields that were checked."""
    given = tuple(Tool(**each) for each in tools)
    if choice is None:
        return ToolUse(given)
    word: Literal["auto", "none", "required"] = "required" if choice.demands else choice.type  # type: ignore[assignment]
    return ToolUse(given, word, choice.name, parallel=choice.disable_parallel_tool_use is not True)
