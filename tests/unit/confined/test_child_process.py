"""Processes for work that must not hold up, or harm, the server."""

import errno
import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest
from numaserve.server.common.patience import Patience
from numaserve.server.confined.child_process import ChildProcess, TooLate

ECHO = ("cat",)


@pytest.fixture
def lack(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], list[int]]:
    """Let so many starts fail, with an errno; returns what grows with each try."""
    real, tries = subprocess.Popen, []

    def let_fail(count: int, number: int) -> list[int]:
        def start(*arguments: Any, **more: Any) -> subprocess.Popen[bytes]:
            tries.append(number)
            if len(tries) <= count:
                raise OSError(number, "not now")
            return real(*arguments, **more)

        monkeypatch.setattr(subprocess, "Popen", start)
        monkeypatch.setattr(time, "sleep", lambda _seconds: None)
        return tries

    return let_fail


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EAGAIN, errno.ENOMEM])
def test_what_a_start_lacks_for_a_moment_is_waited_for(lack: Callable[[int, int], list[int]], number: int) -> None:
    tries = lack(3, number)
    process = ChildProcess(ECHO)
    try:
        process.send(b"words", Patience(60.0))
        assert process.receive(5, Patience(60.0)) == b"words"
    finally:
        process.stop()
    assert len(tries) == 4


def test_a_command_that_is_not_there_is_told_at_once(lack: Callable[[int, int], list[int]]) -> None:
    tries = lack(1, errno.ENOENT)
    with pytest.raises(FileNotFoundError):
        ChildProcess(ECHO)
    assert len(tries) == 1


def test_a_process_that_was_late_while_this_one_was_absent_is_read() -> None:
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 100.0  # absent between any two looks
        return now

    process = ChildProcess(("sh", "-c", "sleep 0.2; echo words"))
    try:
        assert process.receive(6, Patience(0.01, clock)) == b"words\n"
    finally:
        process.stop()


def test_a_process_that_dribbles_its_answer_uses_the_time_up() -> None:
    process = ChildProcess(("sh", "-c", "while echo; do sleep 0.02; done"))
    try:
        with pytest.raises(TooLate):
            process.receive(10_000_000, Patience(0.1))
    finally:
        process.stop()
