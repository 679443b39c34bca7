"""Tools in the body of POST /v1/responses, which have no nested `function`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from numaserve.server.http.fields.typed import tag_of, word_or_type
from numaserve.server.http.fields.types import Strict, Text, Unused, conflict, made_of
from numaserve.server.surfaces.openai.chats.tools_schema import FunctionDefinition, NamedFunction
from numaserve.server.surfaces.openai.responses.entries import qualified
from numaserve.server.surfaces.tool_fields import MAX_TOOLS, Choice, ToolName, distinct, kept, left_out_unless
from pydantic import Discriminator, Field, Tag

_MAX_FUNCTIONS = 4 * MAX_TOOLS


class ResponseTool(FunctionDefinition):
    """A function that the model can call."""

    type: Literal["function"]
    defer_loading: Unused = None
    allowed_callers: Unused = None
    output_schema: Unused = None


_Function = Annotated[ResponseTool, left_out_unless("function")]


class NamespaceTool(Strict):
    """Functions that share a namespace; their calls state the namespace separately from the name."""

    type: Literal["namespace"]
    name: ToolName
    description: Text | None = None
    """No effect: each function has its own description."""
    tools: Annotated[list[_Function], Field(max_length=MAX_TOOLS)]


class GivenTools(msgspec.Struct, frozen=True):
    """The functions of a request; names of functions in a namespace begin with the namespace."""

    functions: list[dict[str, Any]]  # each is the data of a `Tool`
    names: dict[str, tuple[str, str]]  # namespace and name of each function in a namespace, by the function's full name
    listed: list[dict[str, Any]]  # as the response repeats them


class NamedResponseTool(NamedFunction):
    """A function, identified by its name."""

    type: Literal["function"]
    namespace: ToolName | None = None

    @property
    def qualified(self) -> str:
        """The name by which the model knows the function."""
        return qualified(self.name, self.namespace)

    def choice(self) -> Choice:
        """Return the choice of this function."""
        return Choice.named(self.qualified)


class AllowedResponseTools(Strict):
    """A list of function names that the response can call; the prompt still contains all functions."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    """`required` makes the response call at least one of the tools."""
    tools: Annotated[list[NamedResponseTool], Field(min_length=1, max_length=MAX_TOOLS)]
    """Functions that the response can call."""

    def choice(self) -> Choice:
        """Return the choice of these functions."""
        return Choice(self.mode, tuple(tool.qualified for tool in self.tools))


def _tools(given: Sequence[ResponseTool | NamespaceTool | None]) -> GivenTools:
    functions: list[dict[str, Any]] = []
    names: dict[str, tuple[str, str]] = {}
    listed: list[dict[str, Any]] = []
    tools: list[ResponseTool | NamespaceTool] = kept(given)
    for each in tools:
        if isinstance(each, ResponseTool):
            functions.append(each.tool())
            listed.append({"type": each.type, **functions[-1]})
            continue
        inner = [tool.tool() for tool in kept(each.tools)]
        listed.append({"type": each.type, "name": each.name, "description": each.description or ""})
        listed[-1]["tools"] = [{"type": "function", **tool} for tool in inner]
        for tool in inner:
            name = qualified(tool["name"], each.name)
            names[name] = (each.name, tool["name"])
            functions.append({**tool, "name": name})
    if len(functions) > _MAX_FUNCTIONS:
        raise conflict("", f"the tools contain {len(functions)} functions; at most {_MAX_FUNCTIONS} are allowed")
    return GivenTools(distinct(functions), names, listed)


def _choice(given: str | NamedResponseTool | AllowedResponseTools) -> Choice:
    return Choice(given) if isinstance(given, str) else given.choice()  # type: ignore[arg-type]


_Tool = Annotated[
    Annotated[ResponseTool, Tag("[function]")] | Annotated[NamespaceTool, Tag("[namespace]")],
    Discriminator(tag_of()),
    left_out_unless("function", "namespace"),
]
ResponseTools = Annotated[GivenTools, made_of(Annotated[list[_Tool], Field(max_length=MAX_TOOLS)], _tools)]
_Choice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("[word]")]
    | Annotated[NamedResponseTool, Tag("[function]")]
    | Annotated[AllowedResponseTools, Tag("[allowed_tools]")],
    Discriminator(word_or_type),
]
ResponseToolChoice = Annotated[Choice, made_of(_Choice, _choice)]
