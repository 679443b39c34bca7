"""The formats of tool calls, one per module: every module here that defines `FORMAT` is registered."""

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from numaserve.server.answers.tools.format import ToolFormat


@cache
def tool_formats() -> dict[str, ToolFormat]:
    """Return all formats by name, sorted by name."""
    modules = (import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__))
    return {each.name: each for each in sorted((module.FORMAT for module in modules), key=lambda each: each.name)}


def tool_format_of(template: str) -> ToolFormat | None:
    """Return the format of a model with this chat template; None if no format, or more than one, matches."""
    found = [each for each in tool_formats().values() if each.matches(template)]
    return found[0] if len(found) == 1 else None


def plain_format() -> ToolFormat:
    """Return the format for chat templates without tools; the conversation then explains the format to the model."""
    return tool_formats()["hermes"]
