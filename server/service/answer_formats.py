"""The formats in which a model writes calls and thoughts: those of its chat template, or those that are named."""

from collections.abc import Mapping
from typing import TypeVar

from numaserve.server.reasoning.format import ReasoningFormat
from numaserve.server.reasoning.formats import reasoning_format_of, reasoning_formats
from numaserve.server.tools.format import ToolFormat
from numaserve.server.tools.formats import plain_format, tool_format_of, tool_formats
from numaserve.workers.errors import OperatorError

_Format = TypeVar("_Format")


def tool_format(name: str | None, template: str) -> ToolFormat | None:
    """The format called `name`, else the template's; None where that is not known. Raises `OperatorError`."""
    if name is not None:
        return _named("tool-call-parser", name, tool_formats())
    return tool_format_of(template) if "tools" in template else plain_format()


def reasoning_format(name: str | None, template: str) -> ReasoningFormat | None:
    """The format called `name`, else the template's; None where it has none. Raises `OperatorError`."""
    if name is not None:
        return _named("reasoning-parser", name, reasoning_formats())
    return reasoning_format_of(template)


def _named(option: str, name: str, known: Mapping[str, _Format]) -> _Format | None:
    if name == "none":
        return None
    if name not in known:
        raise OperatorError(f"--{option} {name} is not known; choose one of none, {', '.join(known)}")
    return known[name]
