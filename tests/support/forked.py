"""Processes that are forked, and not executed, from one that has imported what they need: see `forking`.

The imports take most of the time of a server, or of a worker, that is started for a test.
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
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import IO, Any, cast

import psutil
from numaserve.server.confined import child_process as helpers
from numaserve.server.gateway.models import process as members
from numaserve.server.supervisor import process as workers

from tests.support.launches import Kind, count

ROOT = Path(__file__).parents[2]
MESSAGE_BYTES = 1 << 17
MOST_DESCRIPTORS = 16
_LOOKS_S = 0.0005
_NAME_BYTES = 15  # the longest name of a process
NUMBER = struct.Struct("i")  # a process id, then an exit status as `subprocess` has it


class Forked:
    """A forked process, with the part of the interface of `subprocess.Popen` that tests and the product use.

    `command` is an interpreter, a script, or `-m` and a module, and arguments; `prepare` has to be called with the
    module first. Raises `OSError`.
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
        module = _module_of(command)
        if (kind := _kind_of(module, _program(command))) is not None:
            count(kind)
        request = {
            "module": module,
            "arguments": list(_program(command)),
            "environment": dict(os.environ if env is None else env),
            "folder": str(Path.cwd()),
            "cpus": sorted(os.sched_getaffinity(0)),
            "session": start_new_session,
            "numbers": [0, 1, 2, *pass_fds],
        }
        with ExitStack() as undo, ExitStack() as its:
            self._told, report = os.pipe()
            undo.callback(os.close, self._told)
            its.callback(os.close, report)
            streams = (self._input(stdin, undo, its), self._output(stdout, text, undo, its), stderr)
            nothing = its.enter_context(Path(os.devnull).open("r+b", buffering=0))
            given = [_descriptor(each, number, nothing) for number, each in enumerate(streams)]
            _prepared[module].ask(request, [report, *given, *pass_fds])
            its.close()
            self.pid = self._number()
            undo.pop_all()

    def _input(self, stdin: int | None, undo: ExitStack, its: ExitStack) -> int | None:
        if stdin != subprocess.PIPE:
            return stdin
        read, write = os.pipe()
        its.callback(os.close, read)
        self.stdin = undo.enter_context(os.fdopen(write, "wb"))
        return read

    def _output(self, stdout: int | None, text: bool, undo: ExitStack, its: ExitStack) -> int | None:
        if stdout != subprocess.PIPE:
            return stdout
        read, write = os.pipe()
        its.callback(os.close, write)
        self.stdout = undo.enter_context(os.fdopen(read, "r" if text else "rb"))
        return write

    def poll(self) -> int | None:
        """Return the exit status as `subprocess` has it, or None while the process is running."""
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

    def communicate(self, timeout: float | None = None) -> tuple[Any, None]:
        """Return what is left of the standard output once the process has ended; with a `timeout` it has to fit a pipe.

        Raises `subprocess.TimeoutExpired`.
        """
        left = None
        if timeout is not None:
            self.wait(timeout)
        if self.stdout is not None and not self.stdout.closed:
            with self.stdout:
                left = self.stdout.read()
        self.wait()
        return left, None

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended meanwhile
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _hear(self) -> None:
        """Read the exit status, and wait until the process that forks has reaped the child."""
        try:
            self.returncode = self._number()
        except ChildProcessError:  # it has killed its children; finalizers of the interpreter's exit ask after that
            self.returncode = -signal.SIGKILL
        os.close(self._told)
        with suppress(ProcessLookupError):
            while os.kill(self.pid, 0) is None:
                time.sleep(_LOOKS_S)

    def _number(self) -> int:
        if not (told := os.read(self._told, NUMBER.size)):
            raise ChildProcessError("the process that forks has ended")
        (number,) = NUMBER.unpack(told)
        return int(number)


def _program(command: Sequence[str]) -> Sequence[str]:
    """Return the module or the script that an interpreter's command runs, and its arguments."""
    return command[next(at for at, word in enumerate(command) if at and not word.startswith("-")) :]


def _module_of(command: Sequence[str]) -> str:
    program = _program(command)[0]
    return Path(program).stem if program.endswith(".py") else program


def _kind_of(module: str, words: Sequence[str]) -> Kind | None:
    if module == "numaserve.workers.process.main":
        return "rank groups" if words[words.index("--rank") + 1] == "0" else None
    return "servers" if module in _SERVERS else None


def _descriptor(stream: IO[Any] | int | None, number: int, nothing: IO[bytes]) -> int:
    """The descriptor that is to be the child's `number`, of what `subprocess.Popen` takes."""
    if stream is None:
        return number
    if stream == subprocess.DEVNULL:
        return nothing.fileno()
    return stream if isinstance(stream, int) else stream.fileno()


def _is_readable(descriptor: int, timeout: float | None) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(None if timeout is None else timeout * 1000))


class Forking:
    """The process that imports `modules`, with `folder` in its path, and forks; it ends when this process does.

    It is at the other end of `control`. By default it is started for the first request.
    """

    def __init__(self, modules: Sequence[str], folder: Path, control: socket.socket | None = None) -> None:
        self._modules = modules
        self._folder = folder
        self._control = control
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, request: Mapping[str, object], descriptors: Sequence[int]) -> None:
        """Send a request with descriptors: the one on which the child is reported, then the child's own."""
        if self._control is None:
            self._control = self._start()
        socket.send_fds(self._control, [json.dumps(request).encode()], descriptors)

    def children(self) -> list[psutil.Process]:
        """Return all running processes that were forked, for this process or for a child."""
        return [] if self._process is None else psutil.Process(self._process.pid).children()

    def _start(self) -> socket.socket:
        mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = os.pathsep.join([str(self._folder), *filter(None, [os.environ.get("PYTHONPATH")])])
        with its:
            # A session of its own: an interrupt is for pytest, which ends what a test has started.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.forking", str(its.fileno()), str(self._folder), *self._modules],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[its.fileno()],
                env=os.environ | {"PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"},  # no thread begins with an import
                cwd=ROOT,
                start_new_session=True,
            )
        atexit.register(self._end, mine)
        return mine

    def _end(self, mine: socket.socket) -> None:
        mine.close()
        assert self._process is not None
        self._process.wait()


_prepared: dict[str, Forking] = {}  # by module
_SERVERS = {"numaserve.server.cli.main", "numaserve.server.gateway.models.process_main", "serve_fake", "serve_fleet"}


def prepare(modules: Sequence[str], folder: Path = ROOT, control: socket.socket | None = None) -> None:
    """Let `Forked` run these modules, or such as import them: see `Forking`."""
    _prepared.update(dict.fromkeys(modules, Forking(modules, folder, control)))


@contextmanager
def members_and_workers_forked() -> Iterator[None]:
    """Have the product fork, in this process, the modules of `prepare` that it would execute, confined ones too."""
    forks = SimpleNamespace(**vars(subprocess) | {"Popen": forked_or_executed})
    helpers.subprocess = members.subprocess = workers.subprocess = cast("ModuleType", forks)
    try:
        yield
    finally:
        helpers.subprocess = members.subprocess = workers.subprocess = subprocess


def forked_or_executed(command: Sequence[str], bufsize: int = -1, **options: Any) -> subprocess.Popen[Any] | Forked:
    """Start a process: fork it where it runs a module of `prepare`."""
    if command[0] == sys.executable and _module_of(command) in _prepared:
        return Forked(command, **options)
    return subprocess.Popen(command, bufsize, **options)


def processes_since(first: Forked, module: str) -> list[psutil.Process]:
    """Return the processes that run `module` and were forked after `first`, in the order of their starts."""
    begin = psutil.Process(first.pid).create_time()
    found = []
    for each in _prepared[module].children():
        with suppress(psutil.NoSuchProcess):  # of an earlier test, and ends by now
            is_running = each.status() != psutil.STATUS_ZOMBIE
            if is_running and each.name() == module[:_NAME_BYTES] and each.create_time() >= begin:
                found.append(each)
    return sorted(found, key=psutil.Process.create_time)
