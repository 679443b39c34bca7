"""A server that is stopped for longer than a step's deadline, alone or with its workers, goes on where it was."""

import json
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from tests.support.chat_model import write_model
from tests.support.real_server import RealServer

DEADLINE_S = 1
ABSENCE_S = 3.0  # longer than the deadlines of a step and of its masks, and a tick
TOKENS = 400  # so many that the absence begins in mid-stream
BODIES: dict[str, dict[str, Any]] = {
    "plain": {},
    "constrained": {"structured_outputs": {"regex": "[a-z ]{400}"}},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    model = write_model(tmp_path_factory.mktemp("absent"))
    deadlines = ("--step-deadline-seconds", str(DEADLINE_S), "--mask-deadline-ms", "1000")
    with RealServer("--tp", "2", "--kv-cache-gib", "0.05", *deadlines, model=str(model)) as made:
        yield made


@pytest.mark.spread("everybody")
@pytest.mark.parametrize("everybody", [False, True], ids=["the front end", "everybody"])
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_no_worker_is_ended_for_an_absence_and_the_stream_goes_on(
    server: RealServer, everybody: bool, body: dict[str, Any]
) -> None:
    workers = server.worker_pids()
    with server.stream(TOKENS, **body) as payloads:
        *undisturbed, _ = payloads
    with server.stream(TOKENS, **body) as payloads:
        # Ranks do not stop at one moment: when the second one does, the first waits for it.
        absent = [server.process.pid, *(workers if everybody else [])]
        for pid in absent:
            _stop(pid)
        time.sleep(ABSENCE_S)
        for pid in absent:
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.1)
        *disturbed, done = payloads
    assert done == "[DONE]"
    assert _texts(disturbed) == _texts(undisturbed)
    assert server.worker_pids() == workers
    assert server.info()["restarts"] == 0


def _stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    while psutil.Process(pid).status() != psutil.STATUS_STOPPED:
        time.sleep(0.001)


def _texts(payloads: list[str]) -> list[str]:
    events = (json.loads(payload) for payload in payloads if not payload.startswith(":"))  # but for keepalive comments
    return [choice["text"] for event in events for choice in event["choices"]]
