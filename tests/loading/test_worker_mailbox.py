"""The worker's socket: what it waits for, and what is done meanwhile."""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from numaserve.workers.interface.protocol import Failure, Shutdown, encode
from numaserve.workers.process import loop
from numaserve.workers.process.loop import Mailbox, Orphaned


class Ends:
    """A mailbox, and what the front end holds of it."""

    def __init__(self, folder: Path) -> None:
        self._context = zmq.Context()
        self.socket: zmq.Socket[bytes] = self._context.socket(zmq.PAIR)
        self.socket.bind(f"ipc://{folder}/rank0.sock")
        self._lifeline, alive = os.pipe()
        self.alive = os.fdopen(alive, "wb")
        self.mailbox = Mailbox(f"ipc://{folder}/rank0.sock", self._lifeline)

    def close(self) -> None:
        """Both ends."""
        self.mailbox.close()
        self._context.destroy(linger=0)
        self.alive.close()
        os.close(self._lifeline)


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[Ends]:
    both = Ends(tmp_path)
    yield both
    both.close()


def test_a_message_that_is_there_is_taken_at_once(ends: Ends) -> None:
    ends.socket.send(encode(Shutdown()))
    assert isinstance(ends.mailbox.receive(lambda: pytest.fail("there is a message"), pause_ms=60_000), Shutdown)


def test_nothing_is_done_meanwhile_in_a_short_pause(ends: Ends) -> None:
    calls = list[float]()
    timer = threading.Timer(0.01, lambda: ends.socket.send(encode(Shutdown())))
    timer.start()
    assert isinstance(ends.mailbox.receive(lambda: bool(calls.append(0.0)), pause_ms=60_000), Shutdown)
    assert not calls
    timer.join()


def test_in_a_longer_pause_something_is_done_until_there_is_nothing_to_do(ends: Ends) -> None:
    calls = list[float]()

    def work() -> bool:
        calls.append(time.monotonic())
        if len(calls) == 3:
            ends.socket.send(encode(Shutdown()))
        return len(calls) < 3

    begin = time.monotonic()
    assert isinstance(ends.mailbox.receive(work, pause_ms=50), Shutdown)
    assert len(calls) == 3
    assert calls[0] - begin > 0.04


def test_a_front_end_that_is_gone_is_noticed_whatever_is_done(ends: Ends) -> None:
    ends.alive.close()
    with pytest.raises(Orphaned):
        ends.mailbox.receive(pause_ms=60_000)
    with pytest.raises(Orphaned):
        ends.mailbox.receive(lambda: True)


def test_no_message_is_kept_for_a_front_end_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "_LINGER_MS", -1)  # without end
    both = Ends(tmp_path)
    both.socket.close()
    both.alive.close()
    both.mailbox.send(Failure(0, -1, "nobody reads this"))
    both.close()
