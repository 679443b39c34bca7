"""``numaserve completion SHELL``: what a shell completes the command by."""

import os
from enum import StrEnum
from typing import Annotated

import typer
from typer.completion import get_completion_inspect_parameters, get_completion_script  # type: ignore[attr-defined]

PROGRAM = "numaserve"
_ASKED = "_NUMASERVE_COMPLETE"  # set by the scripts, for typer


class Shell(StrEnum):
    """The shells that there are scripts for."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="Shell: bash, zsh or fish.")]) -> None:
    """Print the script that completes commands and options in a shell."""
    typer.echo(get_completion_script(prog_name=PROGRAM, complete_var=_ASKED, shell=shell))


def prepare_completion() -> None:
    """Let typer answer where a script asks; other starts do nothing here."""
    if _ASKED in os.environ:
        # It has typer know the shells. Typer does so itself only where it may add --install-completion, which writes
        # to people's start-up files.
        get_completion_inspect_parameters()
