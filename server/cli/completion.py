"""``numaserve completion SHELL``: the scripts with which a shell completes the command."""

import os
from enum import StrEnum
from typing import Annotated

import typer
from typer.completion import get_completion_inspect_parameters, get_completion_script  # type: ignore[attr-defined]

PROGRAM = "numaserve"
_ASKED = "_NUMASERVE_COMPLETE"  # set by the scripts, for typer


class Shell(StrEnum):
    """The shells that have a completion script."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="Shell: bash, zsh or fish.")]) -> None:
    """Print the script that completes commands and options in a shell."""
    typer.echo(get_completion_script(prog_name=PROGRAM, complete_var=_ASKED, shell=shell))


def prepare_completion() -> None:
    """Prepare typer to answer a completion script; other calls of the command do nothing here."""
    if _ASKED in os.environ:
        # The call registers the shells. Typer does so itself only with --install-completion, which writes to users'
        # start-up files.
        get_completion_inspect_parameters()
