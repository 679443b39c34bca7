"""Entry point of a worker process: ``python -m numaserve.workers.process.main --rank R --endpoint ipc://...``.

Started by the supervisor, never by hand: all other parameters come in the first message.
"""

import argparse
import contextlib
import faulthandler
import gc
import signal
import sys
from pathlib import Path

from numaserve.workers.interface.log_lines import set_up_logging
from numaserve.workers.process.loop import Mailbox, Orphaned, serve


def main() -> int:
    """Run a worker; return its exit status."""
    parser = argparse.ArgumentParser(description="A numaserve worker; started by `numaserve serve`.")
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--endpoint", required=True, help="ZeroMQ endpoint of the front end")
    parser.add_argument(
        "--lifeline-fd", type=int, default=-1, help="read end of a pipe that closes when the front end exits"
    )
    arguments = parser.parse_args()
    set_up_logging()
    faulthandler.enable()  # a crash in native code shows the Python traceback
    # A step is one native call. The default action ends the process immediately, even during a step; Python's own
    # handler would wait for the call to return.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # A garbage collection while serving would delay a step of every rank; the loop makes no reference cycles.
    gc.disable()
    mailbox = Mailbox(arguments.endpoint, arguments.lifeline_fd)
    try:
        return serve(mailbox, arguments.rank)
    except Orphaned:
        return 1
    finally:
        mailbox.close()
        if mailbox.is_orphaned:
            _remove_socket(Path(arguments.endpoint.removeprefix("ipc://")))


def _remove_socket(path: Path) -> None:
    """Remove the socket in place of a front end that was killed; the last rank removes the directory."""
    path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        path.parent.rmdir()


if __name__ == "__main__":
    sys.exit(main())
