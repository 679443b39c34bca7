"""``python refuse_numa.py ARGUMENT...``: the numaserve command, to which the kernel refuses all NUMA system calls.

So do the seccomp profiles that Docker and containerd give to containers without CAP_SYS_NICE: EPERM.
"""

import ctypes
import errno
import os
import struct
import sys

# Numbers of x86-64: mbind, set_mempolicy, get_mempolicy, migrate_pages, move_pages.
_REFUSED = (237, 238, 239, 256, 279)
_LOAD_NUMBER = (0x20, 0, 0, 0)
_ALLOW, _REFUSE = (0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x00050000 | errno.EPERM)
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, _PR_SET_NO_NEW_PRIVS = 22, 2, 38


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def refuse() -> None:
    """Install the filter: for this process, what it executes, and their children."""
    jumps = [(0x15, len(_REFUSED) - index, 0, number) for index, number in enumerate(_REFUSED)]
    filters = [_LOAD_NUMBER, *jumps, _ALLOW, _REFUSE]
    program = _Program(len(filters), b"".join(struct.pack("=HBBI", *each) for each in filters))
    libc = ctypes.CDLL(None, use_errno=True)
    for call in (
        (_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0),
    ):
        if libc.prctl(*call) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    refuse()
    os.execv(sys.executable, [sys.executable, "-m", "numaserve.server.cli.main", *sys.argv[1:]])  # noqa: S606
