"""A process that has imported modules, and forks a child for each request to run one of them as a program.

`python -m tests.support.forking CONTROL_FD FOLDER MODULE...`, with FOLDER in the path. A request is a message with
descriptors, see `forked.Forked`. A child is as if it had been executed: with the request's arguments, environment,
working directory and descriptors, and no others. Children end with the process at the other end of CONTROL_FD, however
that ends.
"""

import fcntl
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

from numaserve.server.service.process.ending import end_process

from tests.support import forked, launches
from tests.support.forked import MESSAGE_BYTES, MOST_DESCRIPTORS, NUMBER

_CONTROL_FD = 990  # of a child, which asks for children of its own
_APART = 1000


class Forker:
    """Forks children, and reports their process ids and exit statuses on the first descriptor of each request."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        # Children ask here: at the end of `control` nobody but pytest may have the other end.
        self._inner, self._for_children = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._selector = selectors.DefaultSelector()
        for each in (control, self._inner):
            self._selector.register(each, selectors.EVENT_READ)
        self._children: dict[int, tuple[int, int]] = {}  # process id and where to report, by pidfd
        self._reported: dict[int, int] = {}  # process id of a child that has ended, by where it was reported

    def next_child(self) -> dict:
        """Return the request in each child that is forked for one. In this process, return never."""
        while True:
            for key, _ in self._selector.select():
                if key.fd in self._children:
                    self._report(key.fd)
                elif key.fd in self._reported:
                    self._reap(key.fd)
                elif (request := self._forked(key.fileobj)) is not None:
                    return request

    def _forked(self, asked: socket.socket) -> dict | None:
        message, descriptors, _, _ = socket.recv_fds(asked, MESSAGE_BYTES, MOST_DESCRIPTORS)
        if not message:
            self._end()
        report, *given = descriptors
        request = json.loads(message)
        pid = os.fork()
        if not pid:
            self._place([*given, self._for_children.fileno()], [*request["numbers"], _CONTROL_FD])
            return request
        pidfd = os.pidfd_open(pid)
        self._children[pidfd] = pid, report
        self._selector.register(pidfd, selectors.EVENT_READ)
        os.write(report, NUMBER.pack(pid))
        for each in given:
            os.close(each)
        return None

    def _place(self, given: list[int], numbers: list[int]) -> None:
        """Have the descriptors `given` under these numbers, and no others."""
        apart = [fcntl.fcntl(each, fcntl.F_DUPFD, _APART) for each in given]
        # Not to be closed later, when their numbers are another's.
        for each in (self._selector, self._control, self._inner, self._for_children):
            each.close()
        os.closerange(0, _APART)
        for each, number in zip(apart, numbers, strict=True):
            os.dup2(each, number)
        os.closerange(_APART, max(apart) + 1)

    def _report(self, pidfd: int) -> None:
        """Report the exit status of a child, which stays a zombie until its `Forked` has read the status.

        A child of `subprocess` stays one too: its parent may open a pidfd before it waits.
        """
        pid, report = self._children.pop(pidfd)
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        status = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        with suppress(BrokenPipeError):  # nobody waits for it
            os.write(report, NUMBER.pack(status))
        self._selector.unregister(pidfd)
        os.close(pidfd)
        self._reported[report] = pid
        self._selector.register(report, selectors.EVENT_READ)  # an error of the pipe, once nobody can read it

    def _reap(self, report: int) -> None:
        os.waitpid(self._reported.pop(report), 0)
        self._selector.unregister(report)
        os.close(report)

    def _end(self) -> None:
        for pid, _ in self._children.values():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os._exit(0)


def _become(request: dict) -> None:
    """Be as after an exec of the request's command."""
    os.environ.clear()
    os.environ.update(request["environment"])
    tempfile.tempdir = None  # an import may have looked for it
    os.chdir(request["folder"])
    os.sched_setaffinity(0, request["cpus"])
    if request["session"]:
        os.setsid()
    sys.argv = request["arguments"]
    Path("/proc/self/comm").write_text(request["module"])  # the command line stays this process's


def main() -> None:
    control, folder, *modules = sys.argv[1:]
    for name in modules:
        importlib.import_module(name)
    gc.freeze()  # a collection in a child would copy all of it
    assert len([*Path("/proc/self/task").iterdir()]) == 1, "an import has started a thread, which no child would have"
    request = Forker(socket.socket(fileno=int(control))).next_child()
    _become(request)
    launches.stop_counting()
    forked.prepare(modules, Path(folder), socket.socket(fileno=_CONTROL_FD))
    del sys.modules[request["module"]]  # what it imports stays
    with forked.members_and_workers_forked():
        status = _status_of(request["module"])
    threading._shutdown()
    # Finalization would write to the objects of all imported modules, which copies their memory: it takes longer than
    # the start of a small server. It would also find objects alive that `gc.freeze` hides, and nanobind reports those.
    end_process(status)


def _status_of(module: str) -> int:
    """Run a module as a program. Return its exit status, after the traceback or the message of one that fails."""
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


if __name__ == "__main__":
    main()
