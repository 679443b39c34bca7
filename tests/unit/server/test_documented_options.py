"""The documentation names every option of ``numaserve serve``, and none that does not exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer
from numaserve.server.cli.main import app
from numaserve.server.config import KEYS

OPTIONS = (Path(__file__).parents[3] / "docs" / "options.md").read_text()


def option_rows() -> dict[str, str]:
    """Option to the default that its row of the table gives."""
    rows = re.findall(r"^\| (`--.*?) \| (.*?) \|", OPTIONS, re.MULTILINE)
    return {option: default.strip("`") for names, default in rows for option in re.findall(r"`(--[a-z-]+)`", names)}


def serve_options() -> set[str]:
    serve = typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]
    return {name for each in serve.params for name in (*each.opts, *each.secondary_opts) if name.startswith("--")}


def test_every_option_of_serve_has_its_row_and_every_row_its_option() -> None:
    assert set(option_rows()) == serve_options()


@pytest.mark.parametrize("key", sorted(KEYS))
def test_the_defaults_in_the_table_are_the_real_ones(key: str) -> None:
    default = KEYS[key].default
    row = option_rows().get("--" + key.replace("_", "-"))
    if isinstance(default, bool):
        assert row == ("on" if default else "off")
    elif isinstance(default, int | float | str):
        assert row == str(default)
    else:  # worked out at the start; the table says how
        assert key == "model" or row
