"""The fields for tools that the bodies of all surfaces share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from numaserve.server.answers.tools.types import Tool
from numaserve.server.generation.asked import ToolUse
from numaserve.server.http.fields.typed import kind_of
from numaserve.server.http.fields.types import conflict
from numaserve.server.http.fields.unknown_fields import UnknownFields
from pydantic import (
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    StringConstraints,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
)
from pydantic_core import CoreSchema, core_schema

T = TypeVar("T")


class Choice(msgspec.Struct, frozen=True):
    """The choice of the tools that an answer may call, independent of the surface."""

    mode: Literal["auto", "none", "required"] = "auto"
    names: tuple[str, ...] = ()  # the tools that may be called; empty: all
    one: bool = False  # at most one call

    @classmethod
    def named(cls, name: str) -> Choice:
        """Return the choice of exactly one call of this tool."""
        return cls("required", (name,), one=True)

    def check(self, tools: Sequence[Mapping[str, Any]], param: str) -> None:
        """Raise `PydanticCustomError` if `tools`, each the data of a `Tool`, lack a tool that the choice needs."""
        if self.mode == "required" and not tools:
            raise conflict(param, f"'{param}' requires a tool call, but the request has no tools")
        if not {tool["name"] for tool in tools}.issuperset(self.names):
            raise conflict(param, f"'{param}' names a tool that the request does not define")


def tool_use(tools: Sequence[Mapping[str, Any]], choice: Choice | None, *, parallel: bool = True) -> ToolUse | None:
    """Return the use of tools that validated fields ask for; None without tools."""
    if not tools:
        return None
    choice = choice or Choice()
    return ToolUse(tuple(Tool(**each) for each in tools), choice.mode, choice.names, parallel and not choice.one)


MAX_TOOLS = 256
# OpenAI's and Anthropic's rule, plus the dots, slashes and colons in names of MCP servers.
ToolName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.:/-]{1,128}$")]


class left_out_unless:
    """Drops tools of other types: a tool whose `type` is neither in `served` nor begins with one of `prefixes` becomes
    None.

    The answer names the dropped types. `default` is the type of a tool without one. Refusing such requests was
    rejected: clients send their vendor's tools in every request, and work without them. A type that is almost a served
    one is still an error.
    """

    def __init__(self, *served: str, prefixes: tuple[str, ...] = (), default: str | None = None) -> None:
        self._served = served
        self._prefixes = prefixes
        self._default = default

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_wrap_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        other = {"type": "string", "not": self._other_types()}
        left_out = {"type": "object", "properties": {"type": other}, "required": ["type"]}
        return {"anyOf": [handler(schema), left_out | {"description": "Tools of other types are ignored."}]}

    def _other_types(self) -> dict[str, Any]:
        begins = [{"pattern": f"^{prefix}"} for prefix in self._prefixes]
        return {"anyOf": [{"enum": list(self._served)}, *begins]} if begins else {"enum": list(self._served)}

    def _check(self, value: object, check: ValidatorFunctionWrapHandler, info: ValidationInfo) -> object:
        kind = kind_of(value, self._default)
        if not isinstance(kind, str) or kind in self._served or kind.startswith(self._prefixes):
            return check(value)
        unknown = info.context if isinstance(info.context, UnknownFields) else UnknownFields(refused=True)
        unknown.note_type("tools", kind, self._served)
        return None


def kept(tools: Sequence[T | None]) -> list[T]:
    """Return the tools that were not dropped."""
    return [tool for tool in tools if tool is not None]


def tool_data(
    name: str, description: str | None, parameters: dict[str, Any] | None, strict: bool | None
) -> dict[str, Any]:
    """Return the data of a `Tool`, since long bodies are validated in another process."""
    return {"name": name, "description": description or "", "parameters": parameters, "strict": strict is True}


def distinct(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return `tools`, given as data. Raises `PydanticCustomError` if two have the same name."""
    names = {tool["name"] for tool in tools}
    if len(names) != len(tools):
        raise conflict("name", "two tools have the same name; give each tool its own name")
    return tools
