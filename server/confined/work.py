"""Work in a process that can do nothing else: what such a process runs. `ConfinedWorker` starts it and asks it.

The process reads lines of JSON: first its configuration, with `cpu_seconds`, `make_cpu_seconds` and `memory_bytes`,
then what it is to work on, one piece a line. It answers each piece with `ANSWER_HEAD` and as many bytes as that says:
UTF-8, with lone surrogates passed. It ends when its input does.
"""

import json
import signal
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from numaserve.server.confined.confinement import confine, ignore_ends_of_the_group

ANSWER_HEAD = struct.Struct("<?Q")  # whether it is the result, rather than what is wrong; how many bytes follow
NOT_CONFINED = 3  # the exit status of a process that could not give up what it must not have
_MOST_OF_A_COMPLAINT = 500  # characters

Work = Callable[[Any], str]


class Complaint(Exception):
    """Why there is no result, in words for whoever asked."""


def serve(load: Callable[[], object], make: Callable[[Any], Work]) -> None:
    """Answer until the input ends.

    `load` reads every file that the work may need, as afterwards none can be opened. `make` is called with the
    configuration, once, for the first piece; that is bounded by `make_cpu_seconds`.
    """
    ignore_ends_of_the_group()
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    load()
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    first = source.readline()
    if not first:
        return  # the server ended before it asked for anything
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
    """A context in which the kernel ends this process after `seconds` of processor time.

    The kernel's timer, rather than a check in loops and calls: one operation such as `10 ** 10 ** 10`, a filter over a
    large list or a regular expression that backtracks never comes back to the interpreter. Processor time, rather than
    time of day: a busy machine must not turn good requests away.
    """
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _answer(work: Callable[[], str]) -> tuple[bool, str]:
    """Whether there is a result, and that or the complaint."""
    try:
        return True, work()
    except Complaint as error:
        return False, str(error)[:_MOST_OF_A_COMPLAINT]
    except MemoryError:
        return False, "the operation needs too much memory"
    except Exception as error:  # what is not trusted may raise anything; the answer must come all the same
        return False, f"{type(error).__name__}: {error}"[:_MOST_OF_A_COMPLAINT]
