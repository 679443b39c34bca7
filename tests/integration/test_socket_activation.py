"""The serve command at sockets that somebody else listens on, as systemd does."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import httpx
import psutil
import pytest
from served import Serve, activated, announced_url, completion

JSON = {"Content-Type": "application/json"}
# Reads what was given to it, and says so.
READER = """
import os
from numaserve.server.connection.activation import activated_listeners
from numaserve.workers.interface.errors import OperatorError
try:
    print(*(each.place for each in activated_listeners(os.environ, None)))
except OperatorError as error:
    print("mistake:", error)
print(*(key for key in os.environ if key.startswith("LISTEN_")))
"""


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ns") as short:  # tmp_path may be too long for a socket
        yield Path(short) / "s"


def listening(path: Path | None = None) -> socket.socket:
    if path is None:
        return socket.create_server(("127.0.0.1", 0))
    made = socket.socket(socket.AF_UNIX)
    made.bind(str(path))
    made.listen()
    return made


def said_of(*given: socket.socket, **variables: str) -> list[str]:
    """What a process reads out of sockets that it was given, and which variables it leaves to its children."""
    descriptors = [each.fileno() for each in given]
    done = subprocess.run(
        [*activated(descriptors), sys.executable, "-c", READER],
        pass_fds=descriptors,
        env=os.environ | variables,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.splitlines()


def wait_for(log: Path, text: str) -> None:
    while text not in log.read_text():
        time.sleep(0.02)


def test_the_sockets_are_taken_in_turn_and_hidden_from_children(path: Path) -> None:
    with listening() as internet, listening(path) as unix, listening(Path(f"\0{path}")) as abstract:
        port = internet.getsockname()[1]
        assert said_of(internet, unix, abstract) == [f"http://127.0.0.1:{port} {path} @{path}", ""]


def test_sockets_for_another_process_are_let_alone() -> None:
    with listening() as given:
        assert said_of(given, LISTEN_PID="1") == ["", ""]


@pytest.mark.parametrize("count", ["", "0", "-1", "+1", "one", "9" * 5000])
def test_a_count_that_is_none_is_a_mistake(count: str) -> None:
    with listening() as given:
        assert "is not a number of sockets" in said_of(given, LISTEN_FDS=count)[0]


def test_what_cannot_be_listened_on_is_named_with_what_to_change() -> None:
    with listening() as server, socket.create_connection(server.getsockname()) as connection:
        said = said_of(server, connection)[0]
        assert (
            "file descriptor 4 (of-test-1) from systemd is a connection, not a listening socket: set Accept=no" in said
        )
    with socket.socket(type=socket.SOCK_DGRAM) as datagrams:
        assert "of-test-0) from systemd is not a stream socket: use ListenStream=" in said_of(datagrams)[0]
    with listening() as server:
        assert "descriptor 4 from systemd is not a socket" in said_of(server, LISTEN_FDS="2", LISTEN_FDNAMES="")[0]


def test_another_place_to_listen_at_is_a_mistake(serve: Serve, path: Path, log: Path) -> None:
    with listening() as given:
        assert serve(f"uds={path}", sockets=[given]).wait(60) == 2
    assert "leave --uds out" in log.read_text()


def test_every_socket_serves_and_stays_when_the_server_ends(serve: Serve, path: Path) -> None:
    with listening() as internet, listening(path) as unix:
        process = serve(sockets=[internet, unix])
        url = announced_url(process)
        assert httpx.post(url + "/v1/completions", json=completion(3)).status_code == 200
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://localhost") as client:
            assert client.post("/v1/completions", json=completion(3)).status_code == 200
        workers = psutil.Process(process.pid).children(recursive=True)
        assert workers
        for each in workers:
            assert b"LISTEN_" not in Path(f"/proc/{each.pid}/environ").read_bytes()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert path.exists()


def test_connections_wait_over_a_restart_and_are_served(serve: Serve, log: Path) -> None:
    with listening() as given, httpx.Client(timeout=60) as client:
        first = serve("--", "--step-ms", "20", sockets=[given])
        url = announced_url(first)
        body = completion(5, temperature=0)
        with client.stream("POST", url + "/v1/completions", json=completion(40, stream=True)) as stream:
            lines = (line for line in stream.iter_lines() if line)
            next(lines)
            first.send_signal(signal.SIGTERM)
            wait_for(log, "draining")
            # While the first server drains, and before there is a second one.
            waiting = HTTPConnection(*given.getsockname(), timeout=60)
            waiting.request("POST", "/v1/completions", json.dumps(body), JSON)
            *_, done = lines
        assert done == "data: [DONE]"
        assert first.wait(60) == 0
        assert not select.select([waiting.sock], [], [], 0)[0]
        second = serve(sockets=[given])
        answer = json.load(waiting.getresponse())
        waiting.close()
        # The connection that the first one has closed is made anew.
        again = client.post(url + "/v1/completions", json=body).json()
        assert answer["choices"] == again["choices"]
        assert answer["usage"]["completion_tokens"] == 5
        second.send_signal(signal.SIGTERM)
        assert second.wait(60) == 0
