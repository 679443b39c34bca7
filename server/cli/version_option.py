"""``--version`` of every command."""

from typing import Annotated, Any

import typer
from numaserve.server.common.version import built_commit, installed_version
from numaserve.workers.interface.errors import OperatorError


def version_text() -> str:
    """Return one line: the version, the commit it was built from, and the instruction set the kernels would use.

    A process of its own looks for the instruction set, as for every command: this one loads no kernels.
    """
    from numaserve.server.service.checks.instruction_set import instruction_set  # noqa: PLC0415 nothing else needs it

    try:
        kernels = f"instruction set {instruction_set()}"
    except OperatorError as error:
        kernels = f"no instruction set: {' '.join(str(error).split())}"
    return f"numaserve {installed_version()} (commit {built_commit()}; {kernels})"


def version() -> None:
    """Print the version, the commit of the version, and the instruction set that the kernels would use."""
    typer.echo(version_text())


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
        typer.Option(
            "--version",
            help="Show the version, the commit and the instruction set, and exit.",
            is_eager=True,
            expose_value=False,
            callback=_show,
        ),
    ] = False,
) -> None:
    """Nothing: typer makes options of functions' parameters alone, and this one's is given to all commands."""
