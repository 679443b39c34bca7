"""A process that works on what is not trusted, one piece after another, and can neither run for ever nor do harm.

What came with a model may be a program, or as good as one: nested loops of a template run for years, and a regular
expression that backtracks never returns to any check that could be put into the front end. Only the kernel can stop
that, and it stops processes.
"""

import json
import signal
import threading
from collections.abc import Mapping
from typing import NoReturn

from numaserve.server.common.patience import Patience
from numaserve.server.confined.child_process import ChildProcess, Ended, TooLate, command_of
from numaserve.server.confined.priority import run_when_idle
from numaserve.server.confined.work import ANSWER_HEAD, NOT_CONFINED

MEMORY_BYTES = 512 * 2**20
CPU_SECONDS = 2.0  # for a piece; usual ones take well under a millisecond
# Wall time, start of the process included: several times as much, for a machine whose cores are all busy. Only a
# process that is stopped, or does not get a core at all, takes so long.
SECONDS = 10.0

# By which a process ends for what it does itself, a stack that is exhausted or a call that the filter forbids. Others
# come from outside: a machine short of memory sends SIGKILL.
_ITS_OWN_FAULT = {signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV, signal.SIGSYS}


class WorkFailed(Exception):
    """There is no result, and there would be none again; the message says why."""


class BeyondLimits(WorkFailed):
    """The piece takes more time or memory than it may."""


class WorkerUnavailable(Exception):
    """The process does not answer; the next piece gets a new one. The message is meant for the client."""


class ConfinedWorker:
    """One such process, which runs `confined_work.serve`. Safe to use from several threads; they take turns."""

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
        idle: bool = False,
    ) -> None:
        """`subject` is what messages call it, such as "the chat template", `module` what the process runs; an answer
        has at most `max_bytes`. `make_cpu_seconds`, else `cpu_seconds`, bound what comes before the first piece. An
        `idle` process works only while nothing else wants a core, once it has answered."""
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
        self._idle = idle
        self._unsent_config = self._config
        self._lock = threading.Lock()
        self._closed = False
        self._start()  # now, so that it is up before the first request

    def ask(self, piece: bytes) -> str:
        """The result for `piece`, which is JSON. Raises `WorkFailed` and `WorkerUnavailable`."""
        line = piece + b"\n"
        with self._lock:
            # A process that was killed between requests is no fault of this one, which hence gets a second one.
            answer = self._ask(line) or self._ask(line)
        if answer is None:
            self._raise_dead()
        success, text = answer
        if not success:
            raise WorkFailed(text)
        return text

    def close(self) -> None:
        """End the process, in the middle of a piece too; also done when the object goes away or the interpreter
        exits."""
        self._closed = True
        self._process.kill()
        with self._lock:
            self._process.stop()

    def _ask(self, line: bytes) -> tuple[bool, str] | None:
        """Whether there is a result, and that or the complaint; None when the process died without an answer."""
        if self._process.is_stopped and not self._closed:
            self._start()
        if self._closed:  # asked after the start: `close` may not have seen the new process
            raise WorkerUnavailable("The server is shutting down.")
        process = self._process
        try:
            answer = self._exchange(process, line, Patience(self._seconds))
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
        """Say why the process has ended twice without an answer."""
        if -(self._process.returncode or 0) in _ITS_OWN_FAULT:
            raise BeyondLimits(f"{self._subject} failed: its process crashed twice")
        self._raise_unavailable("ended twice without a result")

    def _raise_unavailable(self, why: str) -> NoReturn:
        raise WorkerUnavailable(
            f"{self._subject[0].upper()}{self._subject[1:]}'s process {why}. Retry later."
        ) from None

    def _exchange(self, process: ChildProcess, line: bytes, patience: Patience) -> tuple[bool, str] | None:
        try:
            process.send(self._unsent_config + line, patience)
            success, size = ANSWER_HEAD.unpack(process.receive(ANSWER_HEAD.size, patience))
            if self._unsent_config and self._idle:  # not before: its start would take too long
                run_when_idle(process.pid)
            self._unsent_config = b""
            if size > self._max_bytes:
                return None
            return success, process.receive(size, patience).decode("utf-8", "surrogatepass")
        except (Ended, UnicodeDecodeError):
            return None

    def _start(self) -> None:
        self._process = ChildProcess(command_of(self._module), in_background=self._idle)
        self._unsent_config = self._config
