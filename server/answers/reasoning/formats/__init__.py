"""The formats of thoughts, one per module: every module here that defines `FORMAT` is registered."""

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from numaserve.server.answers.reasoning.format import ReasoningFormat


@cache
def reasoning_formats() -> dict[str, ReasoningFormat]:
    """Return all formats by name, sorted by name."""
    modules = (import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__))
    return {each.name: each for each in sorted((module.FORMAT for module in modules), key=lambda each: each.name)}


def reasoning_format_of(template: str) -> ReasoningFormat | None:
    """Return the format of a model with this chat template; None if no format, or more than one, matches."""
    found = [each for each in reasoning_formats().values() if each.matches(template)]
    return found[0] if len(found) == 1 else None
