"""Processes that tests have started."""

import time
from collections.abc import Collection

import psutil

_LOOKS_S = 0.005


def lives(process: psutil.Process) -> bool:
    """Whether it runs or sleeps. In a container the first process may not reap at once, or at all: what has ended then
    stays for a while, without memory or files."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def await_ends(processes: Collection[psutil.Process], patience_s: float = 60.0) -> list[psutil.Process]:
    """Wait for the ends of processes, for at most `patience_s` seconds. Return those that live.

    `psutil.wait_procs` waits until they are reaped, too.
    """
    end = time.monotonic() + patience_s
    while (left := [each for each in processes if lives(each)]) and time.monotonic() < end:
        time.sleep(_LOOKS_S)
    return left
