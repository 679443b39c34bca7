import signal
import subprocess
import sys

import pytest

PREPARED = """
import ctypes, mmap, os, signal, socket, subprocess, sys, threading, time
from numaserve.server.confined.confinement import confine
confine(1 << 30)
try:
    {attempt}
except OSError as error:
    print(error.errno)
except RuntimeError as error:
    print(error)
else:
    print("done")
"""


def confined(attempt: str) -> subprocess.CompletedProcess[str]:
    """Run a statement in a process that has confined itself."""
    code = PREPARED.format(attempt=attempt)
    return subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    "attempt",
    [
        "socket.socket()",
        "socket.socketpair()",
        "os.execv('/bin/true', ['true'])",
        "os.fork()",
        "subprocess.Popen(['/bin/true'], close_fds=False)",
        "threading.Thread(target=print).start()",
        "ctypes.CDLL(None).ptrace(0, 0, 0, 0)",
        "ctypes.CDLL(None).process_vm_readv(os.getpid(), 0, 0, 0, 0, 0)",
        "ctypes.CDLL(None).syscall(0x40000000 + 39)",
    ],
)
def test_who_tries_to_get_out_is_ended(attempt: str) -> None:
    ended = confined(attempt)
    assert (ended.returncode, ended.stdout) == (-signal.SIGSYS, "")


@pytest.mark.parametrize(
    "attempt",
    [
        "open('/etc/passwd')",
        "os.open('/dev/null', os.O_RDWR)",
        "os.stat('/')",
        "os.listdir('/')",
        "os.unlink('/nothing')",
        "os.dup(0)",
        "os.memfd_create('x')",
        "os.kill(os.getppid(), 0)",
        "signal.pidfd_send_signal(0, 0)",
        "os.sched_setaffinity(0, {0})",
        "os.setpriority(os.PRIO_PROCESS, 0, 10)",
        "mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_EXEC)",
    ],
)
def test_nothing_else_is_permitted(attempt: str) -> None:
    ended = confined(attempt)
    assert (ended.returncode, ended.stdout) == (0, "1\n"), ended.stderr


@pytest.mark.parametrize(
    "attempt",
    [
        "bytearray(1 << 27)",
        "time.time(), time.monotonic(), time.process_time()",
        "signal.setitimer(signal.ITIMER_PROF, 100)",
        "sys.stdout.flush()",
        "os.urandom(8)",
    ],
)
def test_computing_and_answering_is_permitted(attempt: str) -> None:
    ended = confined(attempt)
    assert (ended.returncode, ended.stdout) == (0, "done\n"), ended.stderr


def test_signals_to_the_group_are_ignored_before_the_first_conversation() -> None:
    code = (
        "import signal; from numaserve.server.template.process import main; main()\n"
        "print(signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))"
    )
    command = [sys.executable, "-P", "-c", code]
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.split() == [str(int(signal.SIG_IGN))] * 2


def test_memory_stays_bounded() -> None:
    ended = confined("bytearray(1 << 31)")
    assert "MemoryError" in ended.stderr
