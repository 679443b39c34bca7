"""One worker process: started by exec, watched through its pidfd, and ended without leftovers."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence

from numaserve.server.common.patience import wait_patiently
from numaserve.server.common.pidfd import open_pidfd
from numaserve.server.supervisor.error_pipe import ErrorPipe
from numaserve.workers.interface.python_process import child_environment, module_command

# Libraries that would start their own threads next to the pinned team.
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1")
# systemd's notification socket belongs to the main process; a worker that wrote to it would feed the watchdog.
_NOT_INHERITED = frozenset({"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"})

DEFAULT_COMMAND = module_command("numaserve.workers.process.main")


def worker_environment(base: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a worker, derived from the front end's environment."""
    inherited = {key: value for key, value in base.items() if key not in _NOT_INHERITED}
    return child_environment(inherited) | _ONE_THREAD


class WorkerProcess:
    """A running worker. `on_exit` is called once in the event loop when the process has ended for any reason.

    The worker inherits `inherited_fds` (negative ones are skipped) and the read end of a pipe, `lifeline_fd`. Only the
    front end has the pipe's write end: end of file means that the front end is gone, even by SIGKILL. (PR_SET_PDEATHSIG
    was rejected: it fires when the *thread* that forked ends, and is lost when the parent dies before the call.)
    """

    def __init__(
        self,
        rank: int,
        command: Sequence[str],
        endpoint: str,
        *,
        lifeline_fd: int,
        inherited_fds: Sequence[int],
        on_exit: Callable[[int], None],
    ) -> None:
        self.rank = rank
        self._on_exit = on_exit
        self._loop = asyncio.get_running_loop()
        arguments = ["--rank", str(rank), "--endpoint", endpoint, "--lifeline-fd", str(lifeline_fd)]
        self._errors = ErrorPipe(rank)
        try:
            # A separate session, so that Ctrl-C in a terminal reaches only the front end, which then drains.
            self._popen = subprocess.Popen(
                [*command, *arguments],
                stdin=subprocess.DEVNULL,
                stderr=self._errors.write_fd,
                pass_fds=[fd for fd in (lifeline_fd, *inherited_fds) if fd >= 0],
                env=worker_environment(os.environ),
                start_new_session=True,
            )
            self._pidfd = open_pidfd(self._popen)
        except OSError:
            self._errors.close()
            raise
        self._errors.started(self._popen.pid)
        self.exited: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(self._pidfd, self._reap)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._popen.pid

    def was_killed(self) -> bool:
        """Return whether a signal ended the process; only after `exited`."""
        return self._popen.returncode < 0

    def ending(self) -> str:
        """Return a description of how the process ended, for a message; only after `exited`."""
        status = self._popen.returncode
        if status is None or status >= 0:
            return f"exited with status {status}"
        text = f"was killed by {signal.Signals(-status).name}"
        return text + " (out of memory?)" if status == -signal.SIGKILL else text

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; do nothing once the process has ended."""
        if not self.exited.done():
            self._popen.send_signal(number)

    async def end(self, grace_s: float) -> None:
        """Send SIGTERM, and SIGKILL after `grace_s` seconds. Return when the process has been reaped."""
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)  # a stopped process reacts to no signal but SIGKILL
        await wait_patiently([self.exited], grace_s)
        self.signal(signal.SIGKILL)
        await self.exited

    def _reap(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._popen.wait()  # returns immediately: the pidfd is readable only after the process has ended
        self._errors.close()  # log the last output before the end is reported
        self.exited.set_result(None)
        self._on_exit(self.rank)
