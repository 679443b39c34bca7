"""The private directory in which the sockets of one worker group live."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from numaserve.workers.errors import OperatorError

# sun_path of sockaddr_un holds 108 bytes including the final NUL (linux/un.h).
MAX_SOCKET_PATH = 107


def socket_directory(world_size: int) -> Path:
    """Make a new directory of mode 0700 for the sockets `rank0.sock` ... of one group.

    It is made under ``$RUNTIME_DIRECTORY`` (systemd), else ``$XDG_RUNTIME_DIR``, else the temporary directory; a
    candidate that cannot be written, or whose socket paths would be longer than the kernel allows, is passed over.

    Raises `OperatorError` when none is left.
    """
    refused: list[str] = []
    for parent in _candidates():
        try:
            made = Path(tempfile.mkdtemp(prefix="numaserve-", dir=parent))  # mkdtemp makes it 0700
        except OSError as error:
            refused.append(f"{parent}: {error.strerror}")
            continue
        if len(os.fsencode(made / f"rank{world_size - 1}.sock")) <= MAX_SOCKET_PATH:
            return made
        made.rmdir()
        refused.append(f"{parent}: socket paths would be longer than {MAX_SOCKET_PATH} bytes")
    raise OperatorError(
        "no directory for the sockets of the workers; set RUNTIME_DIRECTORY to a short path that can be written ("
        + "; ".join(refused)
        + ")"
    )


def remove(directory: Path) -> None:
    """Remove a socket directory and what is in it; one that is already gone is fine."""
    shutil.rmtree(directory, ignore_errors=True)


def _candidates() -> list[Path]:
    # RUNTIME_DIRECTORY may name several directories with colons between them (systemd.exec(5)).
    named = (os.environ.get("RUNTIME_DIRECTORY", "").split(":")[0], os.environ.get("XDG_RUNTIME_DIR", ""))
    return [Path(name) for name in (*named, tempfile.gettempdir()) if name]
