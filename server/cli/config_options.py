"""The command options that are also configuration keys, made from the definitions of the keys."""

from collections.abc import Callable
from inspect import Parameter
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from numaserve.server.cli.shared_options import option, with_options
from numaserve.server.config.file import ALIASES
from numaserve.server.config.serve import KEYS
from numaserve.workers.interface.settings import MODEL_OPTIONS

_Command = Callable[..., None]


def takes_keys(*keys: str) -> Callable[[_Command], _Command]:
    """Add an option for each key to a command, which takes them as `options`: by key, None for an option not given."""
    return lambda command: with_options(command, [_parameter(key) for key in keys], {"options": dict})


def takes_settings(*keys: str) -> Callable[[_Command], _Command]:
    """Add an option for each key and for each of a model's settings to a command, as `takes_keys` does."""
    return takes_keys(*keys, *MODEL_OPTIONS)


def _parameter(key: str) -> Parameter:
    # Without a default, so that the file's value or the key's default applies.
    return option(key, Annotated[_accepted(KEYS[key].annotation) | None, _shown(key)])


def _shown(key: str) -> Any:
    names = [f"--{alias.replace('_', '-')}" for alias, meant in ALIASES.items() if meant == key]
    default = KEYS[key].default
    shown = "" if default is None else f" [default: {default}]"
    own = [f"--{key.replace('_', '-')}"] if names else []
    return typer.Option(*own, *names, help=f"{KEYS[key].description}{shown}", show_default=False)


def _accepted(annotation: Any) -> Any:
    """Return the type of a key's values on the command line, from the key's type in the configuration."""
    kinds = [each for each in get_args(annotation) if each is not NoneType]
    if get_origin(annotation) is Annotated or NoneType in get_args(annotation):
        return _accepted(kinds[0])
    if get_origin(annotation) is tuple:
        return list[str]
    # A choice is a plain string here, so that the configuration reports mistakes in the same words as for a file.
    return str if get_origin(annotation) is Literal else annotation
