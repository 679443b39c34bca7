"""Shipped presets for ``numaserve serve --config NAME``, as data: options for kinds of hosts and for models."""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).parent


def presets() -> dict[str, Path]:
    """The file of every preset, by name."""
    return {path.stem: path for path in sorted(_FOLDER.glob("*/*.yaml"))}
