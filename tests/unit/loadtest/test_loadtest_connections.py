"""Connections that end with their target, and not with the event loop."""

import asyncio
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop
from numaserve.server.loadtest.options import Traffic
from numaserve.server.loadtest.target import open_target

from tests.support.certificates import Files, make_certificate

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return make_certificate(tmp_path / "certificates")


@pytest.fixture
def silent_server(files: Files) -> Iterator[str]:
    """Yield the URL of a server that answers one request and then neither reads nor closes its connection."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(files.certfile, files.keyfile)
    over = threading.Event()

    def serve() -> None:
        connection = tls.wrap_socket(listener.accept()[0], server_side=True, suppress_ragged_eofs=True)
        with connection:
            connection.recv(65536)
            connection.sendall(ANSWER)
            over.wait()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"https://127.0.0.1:{listener.getsockname()[1]}"
        over.set()
        thread.join()


def test_no_connection_outlives_its_target(silent_server: str, files: Files, caplog: pytest.LogCaptureFixture) -> None:
    """A TLS connection waits for the server's close_notify; a loop closed meanwhile would report errors."""

    async def ask() -> tuple[int, object]:
        async with open_target(silent_server, Traffic(ca_file=files.trust)) as target:
            return await target.ask("GET", f"{silent_server}/metrics")

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(ask()) == (200, {})
    assert not caplog.records
