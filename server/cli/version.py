"""``numaserve version``."""

from __future__ import annotations

import importlib.metadata

import typer


def installed_version() -> str:
    """The version of the installed distribution."""
    try:
        return importlib.metadata.version("numaserve")
    except importlib.metadata.PackageNotFoundError:  # a source tree on the path
        return "0+source"


def version() -> None:
    """Print the version."""
    typer.echo(f"numaserve {installed_version()}")
