"""Servers and fake workers that are forked from a process that has imported what they need: see `forking`.

The imports take most of the time of a server that is started for a test.
"""

import atexit
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import psutil

FOLDER = Path(__file__).parent
SCRIPTS = ("fake_worker", "member_fake", "serve_fake", "serve_fleet")
MESSAGE_BYTES = 1 << 17
MOST_DESCRIPTORS = 16
NUMBER = struct.Struct("i")  # a process id, then an exit status as `subprocess` has it


class Forked:
    """A running script of this folder; it has of `subprocess.Popen` what tests and the product use.

    `command` is an interpreter, a script and its arguments.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: IO[str] | int | None = None,
        pass_fds: Sequence[int] = (),
        env: Mapping[str, str] | None = None,
        start_new_session: bool = False,
        text: bool = False,
    ) -> None:
        self.args = command
        self.returncode: int | None = None
        self.stdin: IO[bytes] | None = None
        self.stdout: IO[Any] | None = None
        request = {
            "script": Path(command[1]).stem,
            "command": list(command[1:]),
            "environment": dict(os.environ if env is None else env),
            "folder": str(Path.cwd()),
            "cpus": sorted(os.sched_getaffinity(0)),
            "session": start_new_session,
            "numbers": [0, 1, 2, *pass_fds],
        }
        self._told, report = os.pipe()
        own = [report, os.open(os.devnull, os.O_RDWR)]
        given = {subprocess.DEVNULL: own[1]}
        if stdin == subprocess.PIPE:
            stdin, write = os.pipe()
            own.append(stdin)
            self.stdin = os.fdopen(write, "wb")
        if stdout == subprocess.PIPE:
            read, stdout = os.pipe()
            own.append(stdout)
            self.stdout = os.fdopen(read, "r" if text else "rb")
        streams = (stdin, stdout, stderr if stderr is None or isinstance(stderr, int) else stderr.fileno())
        descriptors = [number if each is None else given.get(each, each) for number, each in enumerate(streams)]
        try:
            socket.send_fds(_control(), [json.dumps(request).encode()], [report, *descriptors, *pass_fds])
        finally:
            for each in own:
                os.close(each)
        (self.pid,) = NUMBER.unpack(os.read(self._told, NUMBER.size))

    def poll(self) -> int | None:
        """Return the exit status as `subprocess` has it, or None while the process runs."""
        if self.returncode is None and _is_readable(self._told, 0):
            self._hear()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status once the process has ended. Raises `subprocess.TimeoutExpired`."""
        if self.returncode is None:
            if not _is_readable(self._told, timeout):
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self._hear()
        assert self.returncode is not None
        return self.returncode

    def communicate(self) -> tuple[Any, None]:
        """Return what is left of the standard output once the process has ended."""
        left = None
        if self.stdout is not None and not self.stdout.closed:
            with self.stdout:
                left = self.stdout.read()
        self.wait()
        return left, None

    def send_signal(self, number: int) -> None:
        """Send a signal; nothing happens once the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _hear(self) -> None:
        (self.returncode,) = NUMBER.unpack(os.read(self._told, NUMBER.size))
        os.close(self._told)


def _is_readable(descriptor: int, timeout: float | None) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(None if timeout is None else timeout * 1000))


def fork_members_and_workers(put: Callable[[object, str, object], None] = setattr) -> None:
    """Have the product fork, in this process, what it would execute: fake workers, and the servers of models."""
    from numaserve.server.fleet import process as members
    from numaserve.server.supervisor import process as workers

    for module in (members, workers):
        put(module, "subprocess", SimpleNamespace(Popen=_popen, PIPE=subprocess.PIPE, DEVNULL=subprocess.DEVNULL))


def _popen(command: Sequence[str], **options: Any) -> "subprocess.Popen[bytes] | Forked":
    script = Path(command[1]) if len(command) > 1 else FOLDER
    is_ours = script.parent == FOLDER and script.stem in SCRIPTS
    return (Forked if is_ours else subprocess.Popen)(command, **options)


def processes_since(first: Forked, script: str) -> list[psutil.Process]:
    """Return the processes that run `script` and were forked after `first`, in the order of their starts.

    The process that forks is their parent, whoever has asked for them.
    """
    assert _forking is not None
    begin = psutil.Process(first.pid).create_time()
    found = []
    for each in psutil.Process(_forking.pid).children():
        with suppress(psutil.NoSuchProcess):  # of an earlier test, and ends by now
            if each.name() == script and each.create_time() >= begin:
                found.append(each)
    return sorted(found, key=psutil.Process.create_time)


_forking: subprocess.Popen[bytes] | None = None
_asked: socket.socket | None = None


def ask_at(control: socket.socket) -> None:
    """Have children forked by the process at the other end."""
    global _asked  # noqa: PLW0603
    _asked = control


def _control() -> socket.socket:
    if _asked is None:
        _start_forking()
    assert _asked is not None
    return _asked


def _start_forking() -> None:
    """Start the process that forks; it ends when this one does."""
    global _forking  # noqa: PLW0603
    mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        # A session of its own: an interrupt is for pytest, which ends what a test has started.
        process = _forking = subprocess.Popen(
            [sys.executable, str(FOLDER / "forking.py"), str(its.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[its.fileno()],
            start_new_session=True,
        )

    def end() -> None:
        mine.close()
        process.wait()

    atexit.register(end)
    ask_at(mine)
