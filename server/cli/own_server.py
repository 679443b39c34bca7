"""A server for one command: it is reached through a Unix socket without a name, and ends with the command."""

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from numaserve.server.client.remote import RemoteServer
from numaserve.server.gateway.models.process import MODEL_COMMAND, start_model_process
from numaserve.server.gateway.models.process_main import ModelLaunch
from numaserve.workers.interface.errors import OperatorError

_URL = "http://localhost"  # of which only the path counts: requests go through the socket
_ENDING_S = 30.0
_LOOKS_S = 0.05


@contextlib.contextmanager
def own_server(
    model: str, options: Mapping[str, object], command: Sequence[str] = MODEL_COMMAND
) -> Iterator[RemoteServer]:
    """Serve `model` with these options of `numaserve serve`; the server is loaded when the first answer comes.

    It is started as a gateway starts one: in a session of its own, so that Ctrl-C reaches the command alone, and
    with the end of a pipe, so that it ends however the command does. Raises `OperatorError` where it does not start.
    """
    with (
        tempfile.TemporaryFile("w+") as log,
        _listening() as (listener, path),
        _started(model, options, command, listener, log) as process,
    ):
        remote = RemoteServer(_URL, None, path)
        while not _is_served(remote):
            if process.poll() is not None:
                raise OperatorError(_last_words(log, model))
            time.sleep(_LOOKS_S)
        yield remote


@contextlib.contextmanager
def _listening() -> Iterator[tuple[socket.socket, Path]]:
    """A socket that listens, and the path at which this process reaches it meanwhile: an open descriptor's.

    Its name in the file system is gone before anything is started, so that nothing is left however the command ends,
    and nobody else finds it. (An abstract socket has no name there either, but any user may connect to it.)
    """
    with socket.socket(socket.AF_UNIX) as listener:
        with tempfile.TemporaryDirectory(prefix="numaserve-") as folder:  # of mode 0700
            named = Path(folder) / "socket"
            listener.bind(str(named))
            descriptor = os.open(named, os.O_PATH | os.O_CLOEXEC)
        try:
            listener.listen()
            yield listener, Path(f"/proc/self/fd/{descriptor}")
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def _started(
    model: str, options: Mapping[str, object], command: Sequence[str], listener: socket.socket, log: IO[str]
) -> Iterator[subprocess.Popen[bytes]]:
    read_end, lifeline = os.pipe()
    try:
        with listener:
            launch = ModelLaunch(model, {**options, "model": model}, sorted(os.sched_getaffinity(0)))
            process = start_model_process(command, launch, listener, read_end, log=log)
        os.close(read_end)
        try:
            yield process
        finally:
            _end(process)
    finally:
        os.close(lifeline)


def _is_served(remote: RemoteServer) -> bool:
    # Its socket listens from the start: who asks before there is somebody waits, until its end at most.
    try:
        with remote.request("GET", "/readyz") as response:
            return response.status == 200
    except OperatorError:
        return False


def _end(process: subprocess.Popen[bytes]) -> None:
    # The second signal ends what still runs: nobody waits for it.
    for number in (signal.SIGTERM, signal.SIGTERM):
        process.send_signal(number)
    try:
        process.wait(_ENDING_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _last_words(log: IO[str], model: str) -> str:
    """What it said of its end: a mistake that can be mended, or the last line of its log."""
    log.seek(0)
    lines = [line for line in log.read().splitlines() if line.strip()]
    mistakes = [
        line.removeprefix("numaserve: ").removeprefix(f"{model}: ") for line in lines if line.startswith("numaserve: ")
    ]
    return (mistakes or lines or [f"the server for model {model} did not start"])[-1]
