"""The code that a confined process runs. `ConfinedWorker` starts the process and sends it work.

The process first reads a line of JSON: its configuration, with `cpu_seconds`, `make_cpu_seconds` and `memory_bytes`.
Then it reads pieces of work: `PIECE_HEAD`, and the number of bytes that the head states. The process answers each piece
with `ANSWER_HEAD` and the number of bytes that the head states. It ends when its input ends.

A piece is JSON, and an answer is UTF-8 in which lone surrogates may occur. Both are plain bytes for some work.
"""

import json
import signal
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import IO, Any

from numaserve.server.confined.confinement import confine, ignore_ends_of_the_group
from numaserve.server.confined.fork import in_a_fork

PIECE_HEAD = struct.Struct("<Q")  # the number of bytes of a piece
ANSWER_HEAD = struct.Struct("<?Q")  # whether a result follows, rather than a complaint, and its number of bytes
NOT_CONFINED = 3  # exit status of a process that could not be confined
_MOST_OF_A_COMPLAINT = 500  # characters

Work = Callable[[Any], str | bytes]


class Complaint(Exception):
    """The reason why there is no result, as a message for the client."""


def serve(
    load: Callable[[], object],
    make: Callable[[Any], Work],
    *,
    read: Callable[[bytes], object] = json.loads,
    in_forks: bool = False,
) -> None:
    """Answer pieces of work until the input ends.

    `load` reads every file that the work may need, because none can be opened later. `make` is called once, with the
    configuration, at the first piece, and bounded by `make_cpu_seconds`. The work receives each piece as `read` returns
    it.

    With `in_forks`, each piece has a fork of its own, which alone is confined. Code that a piece brings in then sees no
    other client's piece. A fork costs some milliseconds.
    """
    ignore_ends_of_the_group()
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    load()
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    first = source.readline()
    if not first:
        return  # the server ended before it sent any work
    config = json.loads(first)
    made: Work | None = None

    def reply(piece: bytes) -> None:
        def work() -> str | bytes:
            nonlocal made
            if made is None:
                with _cpu_limit(config["make_cpu_seconds"]):
                    made = make(config)
            with _cpu_limit(config["cpu_seconds"]):
                return made(read(piece))

        success, answer = _answer(work)
        data = answer.encode("utf-8", "surrogatepass") if isinstance(answer, str) else answer
        sink.write(ANSWER_HEAD.pack(success, len(data)))
        sink.write(data)
        sink.flush()

    def reply_confined(piece: bytes) -> None:
        _confine(config)
        reply(piece)

    if not in_forks:
        _confine(config)
    for piece in _pieces(source):
        if in_forks:
            in_a_fork(partial(reply_confined, piece))
        else:
            reply(piece)


def _confine(config: Mapping[str, Any]) -> None:
    try:
        confine(config["memory_bytes"])
    except OSError:
        sys.exit(NOT_CONFINED)


def _pieces(source: IO[bytes]) -> Iterator[bytes]:
    """Yield the pieces; one that the end of the input cuts is dropped."""
    while len(head := source.read(PIECE_HEAD.size)) == PIECE_HEAD.size:
        (size,) = PIECE_HEAD.unpack(head)
        piece = source.read(size)
        if len(piece) == size:
            yield piece


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


def _answer(work: Callable[[], str | bytes]) -> tuple[bool, str | bytes]:
    """Return whether there is a result, and the result or the complaint."""
    try:
        return True, work()
    except Complaint as error:
        return False, str(error)[:_MOST_OF_A_COMPLAINT]
    except MemoryError:
        return False, "the operation needs too much memory"
    except Exception as error:  # untrusted code may raise anything, and must still be answered
        return False, f"{type(error).__name__}: {error}"[:_MOST_OF_A_COMPLAINT]
