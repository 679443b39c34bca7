"""The code that a confined process runs. `ConfinedWorker` starts the process and sends it work.

The process reads lines of JSON. The first line is its configuration, with `cpu_seconds`, `make_cpu_seconds` and
`memory_bytes`; each further line is a piece of work. The process answers each piece with `ANSWER_HEAD` and the number
of bytes that the head states: UTF-8, in which lone surrogates may occur. It ends when its input ends.
"""

import json
import signal
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from numaserve.server.confined.confinement import confine, ignore_ends_of_the_group

ANSWER_HEAD = struct.Struct("<?Q")  # whether a result follows, rather than a complaint, and its number of bytes
NOT_CONFINED = 3  # exit status of a process that could not be confined
_MOST_OF_A_COMPLAINT = 500  # characters

Work = Callable[[Any], str]


class Complaint(Exception):
    """The reason why there is no result, as a message for the client."""


def serve(load: Callable[[], object], make: Callable[[Any], Work]) -> None:
    """Answer pieces of work until the input ends.

    `load` reads every file that the work may need, because none can be opened later. `make` is called once, with the
    configuration, at the first piece, and bounded by `make_cpu_seconds`.
    """
    ignore_ends_of_the_group()
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    load()
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    first = source.readline()
    if not first:
        return  # the server ended before it sent any work
    config = json.loads(first)
    try:
        confine(config["memory_bytes"])
    except OSError:
        sys.exit(NOT_CONFINED)
    made: Work | None = None
    for line in source:

        def work(line: bytes = line) -> str:
            nonlocal made
            if made is None:
                with _cpu_limit(config["make_cpu_seconds"]):
                    made = make(config)
            with _cpu_limit(config["cpu_seconds"]):
                return made(json.loads(line))

        success, text = _answer(work)
        data = text.encode("utf-8", "surrogatepass")
        sink.write(ANSWER_HEAD.pack(success, len(data)))
        sink.write(data)
        sink.flush()


@contextmanager
def _cpu_limit(seconds: float) -> Iterator[None]:
    """Let the kernel end this process after `seconds` of processor time inside the context.

    Checks in loops and calls were rejected: a single operation, such as `10 ** 10 ** 10`, a filter over a large list or
    a backtracking regular expression, never returns to the interpreter. Wall time was rejected: a busy machine must not
    refuse good requests.
    """
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _answer(work: Callable[[], str]) -> tuple[bool, str]:
    """Return whether there is a result, and the result or the complaint."""
    try:
        return True, work()
    except Complaint as error:
        return False, str(error)[:_MOST_OF_A_COMPLAINT]
    except MemoryError:
        return False, "the operation needs too much memory"
    except Exception as error:  # untrusted code may raise anything, and must still be answered
        return False, f"{type(error).__name__}: {error}"[:_MOST_OF_A_COMPLAINT]
