"""Squares of colours for the scripts of clients that send images, and the checks of the answers."""

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

from checks import SETTING

SQUARES = Path(SETTING["squares"])
INSTRUCTIONS = "Copy the words."
PAIRS = ("red blue", "blue red")
MAX_TOKENS = 8
_SHOWN = ("black white", "green yellow")  # earlier turns, which show the model what to answer


def files(colours: str) -> list[Path]:
    """Return the file of a square of each of `colours`."""
    return [SQUARES / f"{colour}.png" for colour in colours.split()]


def encoded(file: Path) -> str:
    """Return a file in base64."""
    return base64.b64encode(file.read_bytes()).decode()


def data_url(file: Path) -> str:
    """Return a file as a URL."""
    return f"data:image/png;base64,{encoded(file)}"


def turns(colours: str, user: Callable[[str], dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a conversation whose last turn has squares of `colours`; `user` makes such turns."""
    shown = [[user(each), {"role": "assistant", "content": each}] for each in _SHOWN]
    return [*shown[0], *shown[1], user(colours)]
