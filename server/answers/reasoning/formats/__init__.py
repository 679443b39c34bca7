"""The formats of thoughts, a file each: `FORMAT` in a module here is found by its being there."""

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from numaserve.server.answers.reasoning.format import ReasoningFormat


@cache
def reasoning_formats() -> dict[str, ReasoningFormat]:
    """All formats by name, in the order of their names."""
    modules = (import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__))
    return {each.name: each for each in sorted((module.FORMAT for module in modules), key=lambda each: each.name)}


def reasoning_format_of(template: str) -> ReasoningFormat | None:
    """The format of a model with this chat template; None where no format is its, or where it is not clear which."""
    found = [each for each in reasoning_formats().values() if each.matches(template)]
    return found[0] if len(found) == 1 else None
