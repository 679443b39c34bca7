"""The end of a server's process."""

import atexit
import os
import sys
from typing import NoReturn


def end_process(status: int) -> NoReturn:
    """End at once: everything has been closed by now.

    The usual way takes some tenths of a second to take the interpreter apart, and waits for threads, of which one may
    be at a long text whose client is gone.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(status)
