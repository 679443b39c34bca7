"""The option ``--version`` of every command."""

from typing import Annotated, Any

import typer
from numaserve.server.common.version import built_commit, installed_version
from numaserve.workers.interface.errors import OperatorError


def version_text() -> str:
    """Return one line: the version, its commit, and the instruction set that the kernels would use.

    A separate process finds the instruction set, because this process loads no kernels.
    """
    from numaserve.server.service.checks.instruction_set import instruction_set  # noqa: PLC0415 nothing else needs it

    try:
        kernels = f"instruction set {instruction_set().name}"
    except OperatorError as error:
        kernels = f"no instruction set: {' '.join(str(error).split())}"
    return f"numaserve {installed_version()} (commit {built_commit()}; {kernels})"


def version() -> None:
    """Print the version, the commit of the version, and the instruction set that the kernels would use."""
    typer.echo(version_text())


def with_version(command: Any) -> Any:
    """Return `command` with the option on itself and on all its subcommands.

    A parameter of each command's function was rejected: it would be repeated twenty times, and forgotten in new
    commands.
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
    """Do nothing. Typer makes options only from function parameters; this parameter is added to all commands."""
