"""The confinement of this process to computing answers, by the kernel of Linux on x86-64.

It is for processes that work on untrusted input: templates of checkpoints, long bodies of requests. Jinja's sandbox is
Python in the same interpreter as the code that it guards: code that escapes the sandbox controls the process. The
kernel then lets that code compute and answer, and nothing else.
"""

import ctypes
import errno
import os
import resource
import signal
import struct

# Numbers of x86-64's system calls for memory, signals and timers, clocks, pipes and exit.
_ALLOWED = {
    "read": 0,
    "write": 1,
    "close": 3,
    "lseek": 8,
    "munmap": 11,
    "brk": 12,
    "rt_sigaction": 13,
    "rt_sigprocmask": 14,
    "rt_sigreturn": 15,
    "readv": 19,
    "writev": 20,
    "sched_yield": 24,
    "mremap": 25,
    "madvise": 28,
    "getitimer": 36,
    "setitimer": 38,
    "getpid": 39,
    "exit": 60,
    "gettimeofday": 96,
    "sigaltstack": 131,
    "gettid": 186,
    "time": 201,
    "futex": 202,
    "restart_syscall": 219,
    "clock_gettime": 228,
    "clock_getres": 229,
    "exit_group": 231,
    "getrandom": 318,
}
_ALLOWED_UNLESS_EXECUTABLE = {"mmap": 9, "mprotect": 10}
# Calls that end the process: unlike opening a file, no Python module makes them by accident.
_DEADLY = {
    "socket": 41,
    "socketpair": 53,
    "clone": 56,
    "fork": 57,
    "vfork": 58,
    "execve": 59,
    "ptrace": 101,
    "process_vm_readv": 310,
    "process_vm_writev": 311,
    "execveat": 322,
    "clone3": 435,
}

_ARCH_X86_64 = 0xC000003E
_X32_CALLS = 0x40000000  # first number of the x32 ABI
_NUMBER, _ARCH, _ARGUMENT_2 = 0, 4, 32  # offsets in seccomp_data, the input of a filter
_PROT_EXEC = 4
_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050000 | errno.EPERM

_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, _PR_SET_NO_NEW_PRIVS = 22, 2, 38


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def ignore_ends_of_the_group() -> None:
    """Ignore SIGINT and SIGTERM, which may be sent to the whole group while the server still answers requests."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def silence_errors() -> None:
    """Discard standard error.

    Rust libraries write pages about failed allocations; the parent process reports the failure in one line.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)


def confine(memory_bytes: int) -> None:
    """Limit address space to `memory_bytes`, and forbid opening files and all system calls but the allowed ones.

    Raises `OSError` if the kernel does not accept the filter.
    """
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core file would hold data of clients
    program = _filter()
    length = len(program) // struct.calcsize("HBBI")
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(_Program(length, program)))


def _prctl(*arguments: object) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    unused = [ctypes.c_ulong(0)] * (5 - len(arguments))
    if library.prctl(*arguments, *unused) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _filter() -> bytes:
    """Return the filter in the kernel's classic BPF; jumps are relative to the next instruction."""
    code = _instruction(_LOAD, _ARCH)
    code += _instruction(_JUMP_EQUAL, _ARCH_X86_64, yes=1) + _instruction(_RETURN, _KILL)
    code += _instruction(_LOAD, _NUMBER)
    code += _instruction(_JUMP_AT_LEAST, _X32_CALLS, no=1) + _instruction(_RETURN, _KILL)
    for numbers, answer in ((_ALLOWED, _ALLOW), (_DEADLY, _KILL)):
        for number in numbers.values():
            code += _instruction(_JUMP_EQUAL, number, no=1) + _instruction(_RETURN, answer)
    for number in _ALLOWED_UNLESS_EXECUTABLE.values():
        code += _instruction(_JUMP_EQUAL, number, no=4) + _instruction(_LOAD, _ARGUMENT_2)
        code += _instruction(_JUMP_ANY_BIT, _PROT_EXEC, yes=1) + _instruction(_RETURN, _ALLOW)
        code += _instruction(_RETURN, _REFUSE)
    return code + _instruction(_RETURN, _REFUSE)


def _instruction(code: int, operand: int, *, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("HBBI", code, yes, no, operand)
