"""``--version`` of every command."""

from typing import Annotated, Any

import typer
from numaserve.server.version import installed_version


def version_text() -> str:
    """The command's name and version."""
    return f"numaserve {installed_version()}"


def with_version(command: Any) -> Any:
    """Return `command` with the option, as all commands below it have it then.

    A parameter of each command's function would be written twenty times, and forgotten with the next one.
    """
    made = typer.Typer(add_completion=False)
    made.command()(_version_alone)
    (option,) = typer.main.get_command(made).params
    _add(option, command)
    return command


def _add(option: Any, command: Any) -> None:
    command.params.append(option)
    for below in getattr(command, "commands", {}).values():
        _add(option, below)


def _show(context: typer.Context, is_asked: bool) -> None:
    if is_asked and not context.resilient_parsing:
        typer.echo(version_text())
        raise typer.Exit


def _version_alone(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version and exit.", is_eager=True, expose_value=False, callback=_show),
    ] = False,
) -> None:
    """Nothing: typer makes options of functions' parameters alone, and this one's is given to all commands."""
