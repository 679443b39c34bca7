"""The formats of tool calls, a file each: `FORMAT` in a module here is found by its being there."""

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from numaserve.server.answers.tools.format import ToolFormat


@cache
def tool_formats() -> dict[str, ToolFormat]:
    """All formats by name, in the order of their names."""
    modules = (import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__))
    return {each.name: each for each in sorted((module.FORMAT for module in modules), key=lambda each: each.name)}


def tool_format_of(template: str) -> ToolFormat | None:
    """The format of a model with this chat template; None where no format is its, or where it is not clear which."""
    found = [each for each in tool_formats().values() if each.matches(template)]
    return found[0] if len(found) == 1 else None


def plain_format() -> ToolFormat:
    """The format for models whose chat template knows no tools, which are then told of it in the conversation."""
    return tool_formats()["hermes"]
