"""The checks of files with secrets, which other users may not read, and with public keys, which they may not change."""

import os
import stat
from pathlib import Path

from numaserve.workers.interface.errors import OperatorError


def find_secret_file(named: Path, what: str) -> Path:
    """Return the file that an option names: a path, or a bare name for one of systemd's credentials.

    Raises `OperatorError` for a missing file and for one that every user of the machine may read. The message calls the
    file `what`.
    """
    credentials = os.environ.get("CREDENTIALS_DIRECTORY")
    path = Path(credentials) / named if credentials and len(named.parts) == 1 else named
    if not path.exists():
        path = named
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise OperatorError(f"cannot read the {what} {path}: {error.strerror}") from None
    if mode & stat.S_IROTH:
        raise OperatorError(f"every user of this machine can read the {what} {path}: run chmod 600 {path}")
    return path


def is_credential(path: Path) -> bool:
    """Whether a file is one of the credentials that systemd has made for this service (systemd.exec(5))."""
    folder = os.environ.get("CREDENTIALS_DIRECTORY")
    return bool(folder) and path.parent == Path(str(folder))


def check_unchanged(path: Path, what: str) -> None:
    """Raise `OperatorError` for a file that users other than its owner may write. The message calls the file `what`.

    A file that cannot be read is left to its reader.
    """
    try:
        mode = path.stat().st_mode
    except OSError:
        return
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise OperatorError(f"other users of this machine can write the {what} {path}: run chmod go-w {path}")
