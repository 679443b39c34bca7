"""The serve command over fake workers, with a tiny model."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import uvloop
from fake_worker import VOCAB
from served import Process, Serve, activated

from tests.support import tiny_model
from tests.support.coroutines import run_coroutine
from tests.support.forked import Forked, members_and_workers_forked, prepare
from tests.support.imported import SERVER

# Scripts of this folder, and what a server imports while it loads.
FORKED = ("engine_fake", "fake_worker", "model_fake", "serve_fake", "serve_fleet", *SERVER)
SCRIPT = Path(__file__).with_name("serve_fake.py")


@pytest.fixture(autouse=True, scope="session")
def _cheap_processes() -> Iterator[None]:
    """Has workers of engines in this process forked."""
    prepare(FORKED, Path(__file__).parent)
    with members_and_workers_forked():
        yield


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny_model.write_folder(tmp_path / "tiny-model", VOCAB)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Where the server's standard error goes: a pipe that nobody reads would fill up and stop it."""
    return tmp_path / "log"


@pytest.fixture
def serve(model: Path, log: Path) -> Iterator[Serve]:
    """Starts a server; with `execute`, or with sockets, as a command is started, not by a fork."""
    started: list[Process] = []

    def start(
        *words: str,
        environment: dict[str, str] | None = None,
        sockets: Sequence[socket.socket] = (),
        execute: bool = False,
    ) -> Process:
        given = [each.fileno() for each in sockets]
        run = subprocess.Popen if execute or sockets else Forked  # sockets: how they are found is what a test is about
        with log.open("w") as errors:
            process = run(
                [*activated(given), sys.executable, str(SCRIPT), str(model), *words],
                pass_fds=given,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=os.environ | (environment or {}),
            )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """In the event loop that the server uses."""
    return run_coroutine(pyfuncitem, uvloop.new_event_loop)
