"""Pieces of work that each have a fork: nothing of one is there for the next."""

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from numaserve.server.common.patience import Patience
from numaserve.server.confined.worker import BeyondLimits, ConfinedWorker, WorkFailed

CODE = """
import ctypes
from numaserve.server.confined.work import Complaint, serve

seen = []

def work(piece):
    seen.append(piece)
    if piece == "crash":
        ctypes.string_at(0)
    if piece == "complain":
        raise Complaint("no")
    if piece == "open":
        open("/etc/passwd")
    while piece == "hang":
        pass
    return f"{len(seen)} {piece}"

serve(lambda: None, lambda config: work, in_forks=True)
"""


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[ConfinedWorker]:
    command = (sys.executable, "-P", "-c", CODE)
    monkeypatch.setattr("numaserve.server.confined.worker.module_command", lambda _: command)
    made = ConfinedWorker("the work", "", {}, max_bytes=1000, cpu_seconds=0.5, seconds=60.0)
    yield made
    made.close()


def ask(worker: ConfinedWorker, piece: str) -> str:
    return worker.ask(json.dumps(piece).encode())


def test_a_piece_sees_nothing_of_earlier_pieces(worker: ConfinedWorker) -> None:
    assert [ask(worker, piece) for piece in ("a", "b", "a")] == ["1 a", "1 b", "1 a"]


def test_a_fork_is_confined_and_its_complaints_are_reported(worker: ConfinedWorker) -> None:
    with pytest.raises(WorkFailed, match=r"PermissionError: \[Errno 1\]"):
        ask(worker, "open")
    with pytest.raises(WorkFailed, match=r"^no$"):
        ask(worker, "complain")


def test_a_fork_that_fails_is_reported_as_its_process_and_the_next_piece_is_answered(worker: ConfinedWorker) -> None:
    with pytest.raises(BeyondLimits, match=r"more than 0\.5 s of processor time"):
        ask(worker, "hang")
    with pytest.raises(BeyondLimits, match="crashed twice"):
        ask(worker, "crash")
    assert ask(worker, "a") == "1 a"


def test_a_fork_ends_with_its_process(worker: ConfinedWorker) -> None:
    worker._config = worker._config.replace(b'"cpu_seconds": 0.5', b'"cpu_seconds": 1e6')
    worker._unsent_config = worker._config
    ask(worker, "a")
    pid = worker._process.pid
    worker._process.send((6).to_bytes(8, "little") + b'"hang"', Patience(60.0))
    children = Path(f"/proc/{pid}/task/{pid}/children")
    while not (child := children.read_text().strip()):
        time.sleep(0.01)
    os.kill(pid, 9)
    while is_running(int(child)):
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
