"""A worker in a process of its own, forked from one that has imported all that a worker needs.

Imports take most of the time of a small worker.
"""

import multiprocessing
import os
import sys
from multiprocessing.connection import Connection

from tests.support import newcomer
from tests.support.imported import WORKER

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([*WORKER, __name__, "tests.support.rank_preload"])


def work(arguments: list[str], environment: dict[str, str], files: dict[int, Connection]) -> None:
    """Run a worker as its command line does. `files` are its lifeline, the segment of its ring, its mask board and the
    image store, where there are such, by the numbers that they get."""
    from numaserve.workers.process.main import main  # here, and not in each process that collects tests

    newcomer.register()
    for number, file in files.items():
        os.dup2(file.fileno(), number)
        file.close()
    os.environ |= environment
    sys.argv[1:] = arguments
    sys.exit(main())
