"""Processes that tests have started."""

import psutil


def lives(process: psutil.Process) -> bool:
    """Whether it runs or sleeps. In a container the first process may not reap at once, or at all: what has ended then
    stays for a while, without memory or files."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
