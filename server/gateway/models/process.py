"""A model process: started by exec, reporting by systemd's notification protocol, watched through its pidfd."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, cast

import msgspec
from numaserve.server.common.patience import PatientTimer
from numaserve.server.common.pidfd import open_pidfd
from numaserve.server.connection.listen import BACKLOG
from numaserve.server.gateway.models.process_main import ModelLaunch
from numaserve.workers.interface.python_process import child_environment, module_command

MODEL_COMMAND = module_command("numaserve.server.gateway.models.process_main")
_NOT_INHERITED = frozenset({"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"})
_MESSAGE_BYTES = 4096
DESCRIPTORS = 3  # per model process, in the gateway
# For the workers of a killed model process: the kernel takes some seconds to reclaim the memory of a large model.
_LEFTOVERS_S = 60.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ProcessHooks:
    """The callbacks of a model process, called in the event loop."""

    ready: Callable[[], None]
    ended: Callable[[int], None]  # once, with the exit status as in `subprocess`
    gone: Callable[[], None]  # once, afterwards: its workers have ended too, and their memory and cores are free


class ModelProcess:
    """A running model process, which listens at `path`.

    The model process and its workers inherit the listening socket and one end of a pair of sockets. Only this process
    holds the other end. Each end becomes readable when the other is closed everywhere. The model process therefore ends
    with this process, however that ends (see `supervisor.process`). This process learns when the last worker of a
    killed model process has ended. `launch` comes without descriptors. A ready model process is killed when it sends no
    watchdog message for `watchdog_s` seconds, counted while this process runs. Construct inside a running event loop.
    Raises `OSError`.
    """

    def __init__(
        self,
        command: Sequence[str],
        launch: ModelLaunch,
        path: Path,
        hooks: ProcessHooks,
        watchdog_s: float,
    ) -> None:
        self.path = path
        self._name = launch.name
        self._hooks = hooks
        self._watchdog_s = watchdog_s
        self._loop = asyncio.get_running_loop()
        self.gone: asyncio.Future[None] = self._loop.create_future()
        self._leftovers = PatientTimer(self._give_up_on_leftovers)
        self._watchdog = PatientTimer(partial(self.signal, signal.SIGKILL))
        self._is_watched = False
        notify_path = path.with_suffix(".notify")
        self._notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._lifeline, inherited = socket.socketpair()
        try:
            _bind(self._notify, notify_path)
            _bind(listener, path)
            listener.listen(BACKLOG)
            environment = {key: value for key, value in os.environ.items() if key not in _NOT_INHERITED}
            told = {"NOTIFY_SOCKET": str(notify_path), "WATCHDOG_USEC": str(int(watchdog_s * 1e6))}
            self._popen = start_model_process(
                command, launch, listener, inherited.fileno(), environment=environment | told
            )
            self._pidfd = open_pidfd(self._popen)
        except OSError:
            self._notify.close()
            self._lifeline.close()
            raise
        finally:
            listener.close()
            inherited.close()
        self._loop.add_reader(self._pidfd, self._reap)
        self._loop.add_reader(self._notify, self._hear)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._popen.pid

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; does nothing once the process has ended."""
        if self._popen.returncode is None:
            self._popen.send_signal(number)

    def _hear(self) -> None:
        try:
            message = self._notify.recv(_MESSAGE_BYTES)
        except BlockingIOError:
            return
        lines = message.split(b"\n")
        if b"READY=1" in lines:
            self._watchdog.start(self._watchdog_s)
            self._is_watched = True
            self._hooks.ready()
        elif b"WATCHDOG=1" in lines and self._is_watched:
            self._watchdog.start(self._watchdog_s)
        elif b"STOPPING=1" in lines:
            self._stop_watchdog()

    def _stop_watchdog(self) -> None:
        self._is_watched = False
        self._watchdog.stop()

    def _reap(self) -> None:
        self._stop_watchdog()
        self._loop.remove_reader(self._pidfd)
        self._loop.remove_reader(self._notify)
        os.close(self._pidfd)
        self._notify.close()
        status = self._popen.wait()  # returns at once: the pidfd is readable only after the process has ended
        self._hooks.ended(status)
        self._leftovers.start(_LEFTOVERS_S)
        self._loop.add_reader(self._lifeline, self._on_gone)  # no data is ever sent: readable at end of file only

    def _give_up_on_leftovers(self) -> None:
        _log.warning(
            "workers of model %s are still running %g s after the model process ended", self._name, _LEFTOVERS_S
        )
        self._on_gone()

    def _on_gone(self) -> None:
        self._leftovers.stop()
        self._loop.remove_reader(self._lifeline)
        self._lifeline.close()
        self.gone.set_result(None)
        self._hooks.gone()


def start_model_process(
    command: Sequence[str],
    launch: ModelLaunch,
    listener: socket.socket,
    lifeline: int,
    *,
    environment: Mapping[str, str] = os.environ,
    log: IO[str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a model process and send it `launch`, which comes without descriptors.

    The process inherits `listener` and `lifeline`, and ends at the end of `lifeline`; the caller may then close both.
    The process has a session of its own, so that Ctrl-C in a terminal reaches only the caller. Raises `OSError`.
    """
    popen = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=log,
        pass_fds=(listener.fileno(), lifeline),
        env=child_environment(environment),
        start_new_session=True,
    )
    told = msgspec.structs.replace(launch, listen_fd=listener.fileno(), lifeline_fd=lifeline)
    # A new pipe has space for these few hundred bytes. An early end of the process is reported through its pidfd.
    with contextlib.suppress(BrokenPipeError), cast(IO[bytes], popen.stdin) as pipe:
        pipe.write(msgspec.json.encode(told, enc_hook=str))
    return popen


def _bind(bound: socket.socket, path: Path) -> None:
    """Bind `bound` to `path` in a folder of this process alone, replacing the socket of an earlier process."""
    bound.setblocking(False)
    path.unlink(missing_ok=True)
    bound.bind(os.fspath(path))
