"""A server that has no descriptors left for new connections keeps those it has, and takes new ones when it can."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

# As many connections are allowed as the server would take of a larger limit.
CODE = """
import asyncio, os, resource, socket, sys
import uvloop
from numaserve.server.connection.app_server import AppServer
from numaserve.server.connection.bounds import ConnectionLimits

async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})

async def serve():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        server = AppServer(app, [listener], ConnectionLimits(connections=1000))
        serving = asyncio.create_task(server.run_until_stopped())
        while not server.started:
            await asyncio.sleep(0.01)
        highest = max(map(int, os.listdir("/proc/self/fd")))
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 8, highest + 8))
        print(listener.getsockname()[1], flush=True)
        await serving

asyncio.Runner(loop_factory=uvloop.new_event_loop).run(serve())
"""


@pytest.fixture
def server() -> Iterator[tuple[int, str]]:
    """Process id and URL of a server that can open about eight descriptors more."""
    with subprocess.Popen([sys.executable, "-c", CODE], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.pid, f"http://127.0.0.1:{int(process.stdout.readline())}/"
        process.kill()


def processor_seconds(pid: int) -> float:
    used = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
    return sum(map(int, used)) / os.sysconf("SC_CLK_TCK")


def status(client: httpx.Client, url: str) -> int | None:
    """None: the connection was closed without an answer."""
    try:
        return client.get(url).status_code
    except httpx.TransportError:
        return None


def test_connections_that_there_are_go_on_and_new_ones_are_taken_afterwards(server: tuple[int, str]) -> None:
    pid, url = server
    with contextlib.ExitStack() as opened:
        kept = opened.enter_context(httpx.Client(timeout=60))
        assert status(kept, url) == 204
        with contextlib.ExitStack() as others:
            clients = [others.enter_context(httpx.Client(timeout=60)) for _ in range(20)]
            answers = [status(client, url) for client in clients]
            assert answers[0] == 204
            assert answers[-1] is None
            before = processor_seconds(pid)
            time.sleep(1.0)
            assert processor_seconds(pid) - before < 0.5  # what spins takes all of the second, or its share of a core
            assert status(kept, url) == 204
            assert [status(client, url) for client in clients[:3]] == [204, 204, 204]
        later = opened.enter_context(httpx.Client(timeout=60))
        while status(later, url) != 204:  # the server has yet to hear that the others have left
            time.sleep(0.01)
        assert status(kept, url) == 204
