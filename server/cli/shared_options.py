"""The options that several commands share, each defined once, because typer has no groups of options."""

from collections.abc import Callable, Iterable
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any

import typer
from numaserve.workers.interface.errors import OperatorError

# Options of each command that sends requests to a server.
ApiKeyFile = Annotated[Path | None, typer.Option(help="File of API keys. Its first key is sent to the server.")]
CaFile = Annotated[
    Path | None,
    typer.Option(
        help="File of certificate authorities (PEM) that an https server is verified with. "
        "Default: the system's authorities."
    ),
]

MAX_LOADED = typer.Option(
    min=1,
    max=4096,
    help="Maximum number of models of --models loaded at the same time. It overrides max-loaded of the file.",
)


def option(name: str, annotation: Any, default: object = None) -> Parameter:
    """Return the parameter of an option; `annotation` is a type with typer's description of the option."""
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def with_options(
    command: Callable[..., None], shared: Iterable[Parameter], made: dict[str, Callable[[dict[str, Any]], object]]
) -> Callable[..., None]:
    """Return the command with the options `shared` in place of its adjacent parameters named in `made`.

    `made` gives, for each of these parameters, the function that makes its value from the options' values, by name.
    """
    options = {each.name: each for each in shared}
    parameters = list(signature(command, eval_str=True).parameters.values())
    place = next(index for index, each in enumerate(parameters) if each.name in made)
    parameters[place : place + len(made)] = options.values()

    @wraps(command)
    def with_all(**given: Any) -> None:
        values = {name: given.pop(name) for name in options}
        command(**given, **{name: make(values) for name, make in made.items()})

    with_all.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return with_all


def check_for_several(max_loaded: int | None) -> None:
    """Raise `OperatorError` if an option for several models is given with one model."""
    if max_loaded is not None:
        raise OperatorError("--max-loaded needs --models: set --models too, or leave --max-loaded out")
