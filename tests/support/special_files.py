"""What may have a file's name and is none, or is one that nobody should read to its end."""

import os
import socket
from collections.abc import Callable
from pathlib import Path


def _endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _socket(path: Path) -> None:
    # Its address may have a hundred bytes only, which the folder's name alone may have.
    here = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"/proc/self/fd/{here}/{path.name}")
    finally:
        os.close(here)


def _huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


KINDS: dict[str, Callable[[Path], None]] = {
    "a device without end": _endless,
    "a FIFO": os.mkfifo,
    "a folder": Path.mkdir,
    "a socket": _socket,
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link that leads nowhere": lambda path: path.symlink_to("nothing-is-here"),
    "a terabyte of nothing": _huge,
}


def replace(path: Path, kind: str) -> None:
    """Put something of `kind` where the file is."""
    path.unlink(missing_ok=True)
    KINDS[kind](path)
