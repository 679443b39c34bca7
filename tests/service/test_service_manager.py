import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from numaserve.server.service.loading import LoadingDisplay
from numaserve.server.service.process.systemd import ServiceManager, watchdog_seconds


@pytest.fixture
def notify(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        receiver.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield receiver


def received(notify: socket.socket) -> list[str]:
    messages = []
    while True:
        try:
            messages.append(notify.recv(4096).decode())
        except BlockingIOError:
            return messages


def test_loading_is_told_in_percent_and_each_line_once(notify: socket.socket) -> None:
    manager = ServiceManager()
    with LoadingDisplay("m", manager) as display:
        for done in (0, 1, 500, 504, 1000):
            display.update(done, 1000)
    manager.close()
    assert received(notify) == [
        f"STATUS={text}" for text in ("loading m", "loading m: 0 %", "loading m: 50 %", "loading m: 100 %")
    ]


def test_the_watchdog_is_fed_only_while_there_is_progress(
    notify: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "2000")
    health = iter([True, False, True, False])
    manager = ServiceManager()

    def is_healthy() -> bool:
        healthy = next(health, None)
        if healthy is None:
            raise asyncio.CancelledError
        return healthy

    async def feed() -> None:
        with pytest.raises(asyncio.CancelledError):
            await manager.feed_watchdog(is_healthy)

    asyncio.run(feed())
    manager.close()
    assert received(notify) == ["WATCHDOG=1", "WATCHDOG=1"]


@pytest.mark.parametrize(
    ("usec", "pid", "seconds"),
    [("", "", None), ("0", "", None), ("90000000", "", 90.0), ("90000000", "own", 90.0), ("90000000", "1", None)],
)
def test_a_watchdog_counts_only_when_it_is_meant_for_this_process(
    monkeypatch: pytest.MonkeyPatch, usec: str, pid: str, seconds: float | None
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", usec)
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()) if pid == "own" else pid)
    assert watchdog_seconds() == seconds


def test_without_a_service_manager_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    monkeypatch.delenv("WATCHDOG_USEC", raising=False)
    manager = ServiceManager()
    manager.ready("serving")
    manager.stopping()
    asyncio.run(manager.feed_watchdog(lambda: True))  # returns at once
    manager.close()
