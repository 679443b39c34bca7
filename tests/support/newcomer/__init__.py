"""Families that the project does not have, each a file, as somebody writes it who adds one."""

from pathlib import Path

from numaserve.workers import models
from numaserve.workers.models import registry

FOLDER = str(Path(__file__).parent)


def register() -> None:
    """Let this process find the families, as it finds those of the project."""
    if FOLDER not in models.__path__:
        models.__path__.append(FOLDER)
        registry.families.cache_clear()


def unregister() -> None:
    """Undo `register`."""
    if FOLDER in models.__path__:
        models.__path__.remove(FOLDER)
        registry.families.cache_clear()
