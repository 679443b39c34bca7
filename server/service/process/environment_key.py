"""The API key in an environment variable, which is removed from the environment of children and from /proc."""

import contextlib
import ctypes
import os
from pathlib import Path

from numaserve.server.http.auth.key_file import is_sendable
from numaserve.workers.interface.errors import OperatorError

VARIABLE = "NUMASERVE_API_KEY"


def take_environment_key() -> str | None:
    """Return the key, if there is one, and remove the variable. Raises `OperatorError` for an unusable key."""
    key = os.environ.pop(VARIABLE, None)
    if key is None:
        return None
    _blot_out(os.fsencode(f"{VARIABLE}={key}"))
    if not key:
        # An empty secret must not switch the check off.
        raise OperatorError(f"{VARIABLE} is empty: set it to an API key, or unset it")
    if not is_sendable(key):
        raise OperatorError(
            f"{VARIABLE} has a character that is not allowed in an HTTP header: use ASCII without spaces"
        )
    return key


def _blot_out(entry: bytes) -> None:
    """Overwrite the entry in the kernel's initial environment block, which /proc/PID/environ keeps showing."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        # proc(5): field 3 is the first after the name in parentheses; fields 50 and 51 are the block's addresses.
        fields = Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        begin, end = int(fields[47]), int(fields[48])
        block = ctypes.string_at(begin, end - begin) if begin else b""
        at = (b"\0" + block).find(b"\0" + entry + b"\0")
        if at >= 0:
            ctypes.memset(begin + at, ord("x"), len(entry))
