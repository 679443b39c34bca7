"""``numaserve version``."""

from __future__ import annotations

import typer
from numaserve.server.version import installed_version


def version() -> None:
    """Print the version."""
    typer.echo(f"numaserve {installed_version()}")
