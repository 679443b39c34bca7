"""The process for untrusted work, one piece after another, which can neither run indefinitely nor do harm.

Files of a model may be programs or equivalent to programs: nested loops of a template run for years, and a backtracking
regular expression never returns to any check in the front end. Only the kernel can stop such work, by ending the
process.
"""

import json
import signal
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Generic, NoReturn, TypeVar

from numaserve.server.common.patience import Patience
from numaserve.server.confined.child_process import ChildProcess, Ended, TooLate
from numaserve.server.confined.priority import run_when_idle
from numaserve.server.confined.work import ANSWER_HEAD, NOT_CONFINED, PIECE_HEAD
from numaserve.workers.interface.python_process import module_command

MEMORY_BYTES = 512 * 2**20
CPU_SECONDS = 2.0  # per piece; usual pieces take well under a millisecond
# Wall time, process start included: several times the processor time, for a machine whose cores are all busy. Only a
# process that is stopped, or gets no core at all, takes that long.
SECONDS = 10.0

# Signals that a process causes itself, by an exhausted stack or a call that the filter forbids. Other signals come from
# outside: a machine short of memory sends SIGKILL.
_ITS_OWN_FAULT = {signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV, signal.SIGSYS}


Answer = TypeVar("Answer")


class WorkFailed(Exception):
    """The error of work that has no result and would have none in a second try; the message says why."""


class BeyondLimits(WorkFailed):
    """The error of a piece that exceeds its time or memory."""


class WorkerUnavailable(Exception):
    """The error of a process that does not answer; the next piece gets a new process. The message is for the client."""


@dataclass(frozen=True)
class _Piece(Generic[Answer]):
    nbytes: int
    parts: Callable[[], Iterable[bytes]]  # called again for a second try
    read: Callable[[bytes], Answer]  # of the answer; raises `UnicodeDecodeError` for an answer out of form


class ConfinedWorker:
    """A confined process, which runs `work.serve`. Thread-safe; pieces are processed one at a time."""

    def __init__(
        self,
        subject: str,
        module: str,
        config: Mapping[str, object],
        *,
        max_bytes: int,
        cpu_seconds: float = CPU_SECONDS,
        seconds: float = SECONDS,
        make_cpu_seconds: float | None = None,
        memory_bytes: int = MEMORY_BYTES,
        in_background: bool = False,
        idle: bool = False,
    ) -> None:
        """Start the process, which runs `module`. Messages call it `subject`, such as "the chat template".

        An answer has at most `max_bytes`. `make_cpu_seconds`, else `cpu_seconds`, bounds the preparation before the
        first piece. A process `in_background` gets a small share of a core that workers need. Once an `idle` process
        has answered, it runs only while nothing else needs a core.
        """
        self._subject = subject
        self._module = module
        self._max_bytes = max_bytes
        self._cpu_seconds = cpu_seconds
        self._seconds = seconds
        limits = {
            "cpu_seconds": cpu_seconds,
            "make_cpu_seconds": make_cpu_seconds or cpu_seconds,
            "memory_bytes": memory_bytes,
        }
        self._config = json.dumps({**config, **limits}).encode() + b"\n"
        self._in_background = in_background or idle
        self._idle = idle
        self._unsent_config = self._config
        self._lock = threading.Lock()
        self._closed = False
        self._start()  # at once, so that the process is ready before the first request

    def ask(self, piece: bytes) -> str:
        """Return the result for `piece`, which is JSON. Raises `WorkFailed` and `WorkerUnavailable`."""
        return self._result(_Piece(len(piece), lambda: (piece,), _text))

    def ask_in_parts(self, nbytes: int, parts: Callable[[], Iterable[bytes]]) -> bytes:
        """Return the result, as bytes, for a piece of `nbytes` in parts. Raises as `ask` does.

        A long piece is never whole in this process: to make it would hold the GIL for milliseconds.
        """
        return self._result(_Piece(nbytes, parts, bytes))

    def close(self) -> None:
        """End the process, even in the middle of a piece. Also done at the end of the object or of the interpreter."""
        self._closed = True
        self._process.kill()
        with self._lock:
            self._process.stop()

    def _result(self, piece: _Piece[Answer]) -> Answer:
        with self._lock:
            # The process may have been killed between requests, so each request gets a second try.
            answer = self._ask(piece) or self._ask(piece)
        if answer is None:
            self._raise_dead()
        return answer[0]

    def _ask(self, piece: _Piece[Answer]) -> tuple[Answer] | None:
        """Return the result; None if the process died unanswered. Raises `WorkFailed` for a complaint."""
        if self._process.is_stopped and not self._closed:
            self._start()
        if self._closed:  # checked after the start: `close` may not have seen the new process
            raise WorkerUnavailable("The server is shutting down.")
        process = self._process
        try:
            answer = self._exchange(process, piece, Patience(self._seconds))
        except TooLate:
            process.stop()
            self._raise_unavailable(f"did not answer within {self._seconds:g} s")
        if answer is not None:
            return answer
        process.stop()
        if process.returncode == -signal.SIGPROF:
            raise BeyondLimits(f"{self._subject} ran for more than {self._cpu_seconds:g} s of processor time")
        if process.returncode == NOT_CONFINED:
            raise WorkFailed(f"{self._subject} needs a kernel with seccomp filters, which this kernel lacks")
        return None

    def _raise_dead(self) -> NoReturn:
        """Raise the error that explains why the process has ended twice without an answer."""
        if -(self._process.returncode or 0) in _ITS_OWN_FAULT:
            raise BeyondLimits(f"{self._subject} failed: its process crashed twice")
        self._raise_unavailable("ended twice without a result")

    def _raise_unavailable(self, why: str) -> NoReturn:
        raise WorkerUnavailable(
            f"{self._subject[0].upper()}{self._subject[1:]}'s process {why}. Retry later."
        ) from None

    def _exchange(self, process: ChildProcess, piece: _Piece[Answer], patience: Patience) -> tuple[Answer] | None:
        try:
            for part in chain((self._unsent_config + PIECE_HEAD.pack(piece.nbytes),), piece.parts()):
                process.send(part, patience)
            success, size = ANSWER_HEAD.unpack(process.receive(ANSWER_HEAD.size, patience))
            if self._unsent_config and self._idle:  # not earlier: the start would take too long
                run_when_idle(process.pid)
            self._unsent_config = b""
            if size > self._max_bytes:
                return None
            data = process.receive(size, patience)
            if not success:
                raise WorkFailed(_text(data))
            return (piece.read(data),)
        except (Ended, UnicodeDecodeError):
            return None

    def _start(self) -> None:
        self._process = ChildProcess(module_command(self._module), in_background=self._in_background)
        self._unsent_config = self._config


def _text(answer: bytes) -> str:
    return answer.decode("utf-8", "surrogatepass")
