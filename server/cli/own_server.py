"""A server for one command, reached through an unnamed Unix socket, which ends with the command."""

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

_URL = "http://localhost"  # only the path matters: requests go through the socket
_ENDING_S = 30.0
_LOOKS_S = 0.05


@contextlib.contextmanager
def own_server(
    model: str, options: Mapping[str, object], command: Sequence[str] = MODEL_COMMAND
) -> Iterator[RemoteServer]:
    """Serve `model` with these options of `numaserve serve`; the first answer comes when the model is loaded.

    The server is started as by a gateway. A session of its own makes Ctrl-C reach the command alone. The end of a pipe
    makes the server end with the command, however that ends. Raises `OperatorError` if the server does not start.
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
    """Yield a listening socket, and the path of an open descriptor through which this process reaches the socket.

    The name in the file system is removed before anything is started: nothing is left however the command ends, and no
    other process can find the socket. (An abstract socket has no such name either, but any user may connect to it.)
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
    # The socket listens from the start: a request before the server is ready waits, at most until the server ends.
    try:
        with remote.request("GET", "/readyz") as response:
            return response.status == 200
    except OperatorError:
        return False


def _end(process: subprocess.Popen[bytes]) -> None:
    # The second signal ends running requests, for which no one waits.
    for number in (signal.SIGTERM, signal.SIGTERM):
        process.send_signal(number)
    try:
        process.wait(_ENDING_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _last_words(log: IO[str], model: str) -> str:
    """Return the reason for the server's end: a mistake that can be corrected, or the last line of the log."""
    log.seek(0)
    lines = [line for line in log.read().splitlines() if line.strip()]
    mistakes = [
        line.removeprefix("numaserve: ").removeprefix(f"{model}: ") for line in lines if line.startswith("numaserve: ")
    ]
    return (mistakes or lines or [f"the server for model {model} did not start"])[-1]
