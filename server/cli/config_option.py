"""Options of commands that are keys of the configuration too."""

from __future__ import annotations

from typing import Any

import typer
from numaserve.server.config import ALIASES, KEYS


def config_option(key: str, *names: str) -> Any:
    """An option whose help is the key's description. It has no default, so that the file's or the key's counts."""
    aliases = [f"--{alias.replace('_', '-')}" for alias, meant in ALIASES.items() if meant == key]
    if aliases:
        names = (*(names or (f"--{key.replace('_', '-')}",)), *aliases)
    default = KEYS[key].default
    shown = "" if default is None else f" [default: {default}]"
    return typer.Option(*names, help=f"{KEYS[key].description}{shown}", show_default=False)
