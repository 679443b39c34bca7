"""Draining, stopping, and what is left afterwards: nothing."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zmq
from fake_worker import expected_tokens
from harness import (
    GREEDY,
    Options,
    generate,
    make_engine,
    pids_of,
    process_exists,
    run,
    running_engine,
    tokens_of,
    until,
)
from numaserve.server.engine.types import GenerationFailed
from numaserve.server.metrics.metrics import Metrics
from numaserve.shm_comm.segment import create_segment

from tests.support.forked import Forked

SLOW = ("--step-ms", "5")


@pytest.fixture
def sockets(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the groups of this test make their directories."""
    with tempfile.TemporaryDirectory(prefix="ns", dir="/tmp") as short:  # tmp_path may be too long for a socket
        monkeypatch.setenv("RUNTIME_DIRECTORY", short)
        yield Path(short)


async def test_a_worker_that_is_in_a_step_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("numaserve.server.engine.engine._STOP_GRACE_S", 3600.0)
    async with running_engine(Options(faults=("--hang-at-step", "3"))) as engine:
        job = asyncio.create_task(generate(engine, [10], 100))
        await until(lambda: engine.server_info()["steps"] == 3)
        async with asyncio.timeout(60):
            await engine.stop()
        with pytest.raises(GenerationFailed, match="shutting down"):
            await job


async def test_an_end_at_once_does_not_wait_for_what_idle_workers_do_besides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("numaserve.server.engine.engine._STOP_GRACE_S", 3600.0)
    async with running_engine(Options(faults=("--slow-end",))) as engine:
        patient = asyncio.create_task(engine.stop())
        await asyncio.sleep(0.1)
        assert not patient.done()
        async with asyncio.timeout(60):
            await engine.stop(at_once=True)
            await patient


async def test_no_file_and_no_descriptor_is_left_after_restarts_and_stop(sockets: Path) -> None:
    async with running_engine(Options()):
        pass  # the first engine starts the process that forks workers, which stays
    before = len(list(Path("/proc/self/fd").iterdir()))
    options = Options(ranks=2, ring_factory=lambda: create_segment(2, 1, 4096))
    async with running_engine(options) as engine:
        assert len(list(sockets.iterdir())) == 1
        assert all(path.stat().st_mode & 0o777 == 0o700 for path in sockets.iterdir())
        for _ in range(2):
            os.kill(pids_of(engine)[1], signal.SIGKILL)
            await until(lambda: not engine.is_ready())
            await until(engine.is_ready)
        assert len(list(sockets.iterdir())) == 1
        await generate(engine, [11], 5)
    assert list(sockets.iterdir()) == []
    assert len(list(Path("/proc/self/fd").iterdir())) == before


async def test_strangers_at_the_sockets_change_nothing(sockets: Path) -> None:
    async with running_engine(Options(faults=("--step-ms", "2"))) as engine:
        job = asyncio.create_task(generate(engine, [11, 12], 100))
        (path,) = sockets.glob("*/rank0.sock")
        with socket.socket(socket.AF_UNIX) as junk, zmq.Context() as context:
            junk.connect(str(path))
            junk.sendall(os.urandom(4096))
            stranger = context.socket(zmq.PAIR)
            stranger.setsockopt(zmq.LINGER, 0)
            stranger.connect(f"ipc://{path}")
            stranger.send(b"\x01garbage", zmq.NOBLOCK)
            assert tokens_of(await job) == expected_tokens([11, 12], GREEDY, 100)
            stranger.close()


@contextmanager
def front_end() -> Iterator[tuple[Forked, list[int]]]:
    """A process with an engine, and its workers."""
    process = Forked([sys.executable, "engine_fake.py"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        pids = [int(word) for word in process.stdout.readline().split()]
        assert len(pids) == 2
        yield process, pids
    finally:
        process.kill()
        process.communicate()


def test_workers_do_not_outlive_a_killed_front_end(sockets: Path) -> None:
    with front_end() as (_, pids):
        pass
    run(until(lambda: not any(map(process_exists, pids))))


async def test_what_a_group_leaves_that_is_killed_whole_is_removed_by_the_next(sockets: Path) -> None:
    with front_end() as (process, pids):
        process.send_signal(signal.SIGSTOP)  # it would start others
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
    (left,) = sockets.iterdir()
    assert len(list(left.iterdir())) == 2
    async with running_engine(Options()), running_engine(Options()) as engine:
        assert not left.exists()
        assert len(list(sockets.iterdir())) == 2
        await generate(engine, [11], 5)


async def test_stopping_while_loading_leaves_no_process(sockets: Path) -> None:
    engine = make_engine(Options(ranks=2), Metrics("fake"))
    starting = asyncio.create_task(engine.start())
    await until(lambda: len(pids_of(engine)) == 2)
    pids = pids_of(engine)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not any(map(process_exists, pids))
    await engine.stop()
    assert list(sockets.iterdir()) == []
