"""The API key that comes in an environment variable, which neither children nor /proc show afterwards."""

import contextlib
import ctypes
import os
from pathlib import Path

from numaserve.server.http.auth.key_file import is_sendable
from numaserve.workers.interface.errors import OperatorError

VARIABLE = "NUMASERVE_API_KEY"


def take_environment_key() -> str | None:
    """The key, if there is one; the variable is gone afterwards. Raises `OperatorError` for one that cannot be used."""
    key = os.environ.pop(VARIABLE, None)
    if key is None:
        return None
    _blot_out(os.fsencode(f"{VARIABLE}={key}"))
    if not key:
        # Serving without a check because a secret was not filled in would be the wrong way to fail.
        raise OperatorError(f"{VARIABLE} is empty: set it to an API key, or unset it")
    if not is_sendable(key):
        raise OperatorError(
            f"{VARIABLE} has a character that is not allowed in an HTTP header: use ASCII without spaces"
        )
    return key


def _blot_out(entry: bytes) -> None:
    """Overwrite the entry in the block that the kernel made for this process: /proc/PID/environ goes on showing it."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        # proc(5): behind the name in parentheses come fields 3 and following; 50 and 51 are where the block is.
        fields = Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        begin, end = int(fields[47]), int(fields[48])
        block = ctypes.string_at(begin, end - begin) if begin else b""
        at = (b"\0" + block).find(b"\0" + entry + b"\0")
        if at >= 0:
            ctypes.memset(begin + at, ord("x"), len(entry))
