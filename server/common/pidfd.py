"""The descriptor through which a child process is watched."""

import os
import subprocess


def open_pidfd(popen: subprocess.Popen[bytes]) -> int:
    """Return a pidfd of a process that has not been waited for; kill the process if no pidfd can be opened.

    Raises `OSError`, for example without free descriptors.
    """
    try:
        return os.pidfd_open(popen.pid)
    except OSError:
        popen.kill()
        popen.communicate()
        raise
