"""The exit of a server's process."""

import atexit
import os
import sys
from typing import NoReturn


def end_process(status: int) -> NoReturn:
    """End the process at once; everything must be closed.

    A normal exit takes some tenths of a second to tear the interpreter down. It also waits for threads, one of which
    may work on a long text whose client is gone.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(status)
