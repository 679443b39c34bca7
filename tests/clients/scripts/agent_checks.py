"""Helpers of the scripts of agents: run a command to its end, or leave it, and force a call.

The model says "ok", or the colour of a square; it calls the tool that `forced` names. See `agent_model`.
"""

import http.client
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from checks import BIN, SCRATCH, SETTING, URL

SAID = "ok"
ENDLESS = "Run a marathon, please."  # is answered until the client leaves
SMALL_URL: str = SETTING["urls"][1]  # of a server whose context every prompt is too long for
SECONDS = 240.0


@contextmanager
def forced(tool: str, url: str = URL, *, file: str = "") -> Iterator[None]:
    """Have each request with this tool call it, for this `file`, and then answer."""
    _force(tool, file, url)
    try:
        yield
    finally:
        _force("", "", url)


def _force(tool: str, file: str, url: str) -> None:
    _ask("POST", url, f"/forced?tool={tool}&file={file}")


def _ask(method: str, url: str, path: str) -> str:
    connection = http.client.HTTPConnection(urlsplit(url).netloc)
    with closing(connection):
        connection.request(method, path)
        answer = connection.getresponse()
        assert answer.status == http.HTTPStatus.OK
        return answer.read().decode()


def folder(name: str) -> Path:
    """Make an empty folder to work in."""
    made = SCRATCH / name
    made.mkdir()
    return made


def run(command: Sequence[str], where: Path, more: Mapping[str, str], *, fails: bool = False) -> str:
    """Run a command of the environment to its end; return its standard output, or of one that `fails`, as it then has
    to, all that it has written."""
    errors = subprocess.STDOUT if fails else sys.stderr
    options = _options(command, where, more)
    ended = subprocess.run(**options, stdout=subprocess.PIPE, stderr=errors, timeout=SECONDS, check=False)
    said = ended.stdout.decode(errors="replace")
    print(said[-4000:], file=sys.stderr)
    assert (ended.returncode != 0) == fails, f"{command[0]} ended with status {ended.returncode}: {said[-1000:]}"
    return said


def _options(command: Sequence[str], where: Path, more: Mapping[str, str]) -> dict[str, Any]:
    words = [str(BIN / command[0]), *command[1:]]
    return {"args": words, "cwd": where, "env": os.environ | more, "stdin": subprocess.DEVNULL}


def leave(command: Sequence[str], where: Path, more: Mapping[str, str]) -> None:
    """Interrupt a command in the middle of an answer: the server must stop generating it."""
    options = _options(command, where, more)
    process = subprocess.Popen(**options, stdout=sys.stderr, stderr=sys.stderr, start_new_session=True)
    try:
        until(lambda: running() > 0, "no request came")
    finally:
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(2)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    until(lambda: running() == 0, "the request goes on")


def running() -> float:
    """Return how many requests the server is running."""
    lines = _ask("GET", URL, "/metrics").splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("vllm:num_requests_running"))


def until(condition: Callable[[], bool], otherwise: str) -> None:
    """Wait for a condition that no event announces."""
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, otherwise
        time.sleep(0.1)
