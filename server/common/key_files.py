"""The files of secret keys for links between hosts."""

import os
import stat
from pathlib import Path

from numaserve.server.common.secret_file import find_secret_file, is_credential
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.files import SETTINGS_BYTES, read_text
from numaserve.workers.interface.host_links import KeyPair, keys_of, new_keys

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def read_key_file(named: Path) -> KeyPair:
    """Return the pair of the secret key in a file, a path or the name of a credential of systemd.

    Raises `OperatorError` for a file that its group or other users may use, and for one without a key.
    """
    path = find_secret_file(named, "key file")
    mode = stat.S_IMODE(path.stat().st_mode)
    # An access list lets the service's user read a credential, and its mask is the group's mode: 0440.
    if mode & _OTHERS and not is_credential(path):
        raise OperatorError(f"the key file {path} has the mode {mode:04o}, and must have 0600: run chmod 600 {path}")
    try:
        return keys_of(read_text(path, SETTINGS_BYTES).strip())
    except ValueError as error:
        raise OperatorError(f"the key in the file {path} {error}") from None


def write_key_file(path: Path) -> KeyPair:
    """Write a new secret key to a new file of mode 0600, and return the pair. Raises `OperatorError`."""
    keys = new_keys()
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f"{keys.secret}\n")
    except OSError as error:
        raise OperatorError(
            f"cannot write a new key to {path}: {error.strerror}. Name a file that does not exist"
        ) from None
    return keys
