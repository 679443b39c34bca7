"""Finds the file of API keys and sees that nobody else can read it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from numaserve.server.api.auth import read_keys
from numaserve.workers.errors import OperatorError


def find_api_key_file(named: Path) -> Path:
    """The file that `api_key_file` names: a path, or a bare name for one of systemd's credentials.

    Raises `OperatorError` for a missing file and for one that every user of the machine may read.
    """
    credentials = os.environ.get("CREDENTIALS_DIRECTORY")
    path = Path(credentials) / named if credentials and len(named.parts) == 1 else named
    if not path.exists():
        path = named
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise OperatorError(f"cannot read the API key file {path}: {error.strerror}") from None
    if mode & stat.S_IROTH:
        raise OperatorError(f"every user of this machine can read the API keys in {path}: chmod 600 {path}")
    return path


def client_key(named: Path | None) -> str | None:
    """The key a client sends: the first of the file, if one is named. Raises `OperatorError` when there is none."""
    return None if named is None else read_keys(find_api_key_file(named))[0]
