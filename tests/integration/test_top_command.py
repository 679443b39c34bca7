"""`numaserve top URL` against a server over fake workers."""

import asyncio
import os
import pty
import signal
import subprocess
import sys

import pytest
from harness import Options, Server, serving, until
from numaserve.server.cli.main import main

from tests.support.stand_in import StandIn


async def look(server: Server, *options: str) -> object:
    def status() -> object:
        with pytest.raises(SystemExit) as caught:
            main(("top", str(server.client.base_url), "--once", "--seconds", "0.3", *options))
        return caught.value.code

    return await asyncio.to_thread(status)


async def test_a_server_at_work_and_an_idle_one_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(Options(ranks=2, running=1, faults=["--step-ms", "2"])) as server:
        working = [asyncio.create_task(server.complete(prompt=[11, 12], max_tokens=1000)) for _ in range(2)]
        await until(lambda: server.engine.load().waiting == 1)
        assert await look(server) == 0
        for each in working:
            each.cancel()
        await asyncio.gather(*working, return_exceptions=True)
        await until(lambda: server.engine.load().running == 0)
        await until(lambda: server.engine._steps.idle)  # the last step, too
        assert await look(server) == 0
    busy, idle = capsys.readouterr().out.split("serving")[1:]
    assert "1 of 1 running, 1 waiting, the longest for" in busy
    assert "Tokens/s  0.0" not in busy
    assert "linear" in busy
    assert "0 of 1 running, 0 waiting\n" in idle
    assert "Tokens/s  0.0 output, 0 prompt; 0.0 steps/s" in idle
    assert "linear" not in idle


def test_no_server_is_one_line_and_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(("top", "http://127.0.0.1:1", "--once"))
    assert caught.value.code == 2
    assert "Check that the server is running" in capsys.readouterr().err


def test_a_live_view_goes_on_until_it_is_interrupted_and_gives_the_terminal_back() -> None:
    terminal, end = pty.openpty()
    try:
        with StandIn() as server:
            command = [sys.executable, "-m", "numaserve.server.cli.main", "top", server.url, "--seconds", "0.05"]
            process = subprocess.Popen(command, stdin=end, stdout=end, env=os.environ | {"TERM": "xterm"})
            os.close(end)
            shown = b""
            while shown.count(b"Tokens/s") < 2:  # of the first view there are no rates
                shown += os.read(terminal, 4096)
        # The server has ended meanwhile, and the view says so for as long as somebody looks.
        while shown.count(b"does not answer") < 2:
            shown += os.read(terminal, 4096)
        process.send_signal(signal.SIGINT)
        while b"\x1b[?1049l" not in shown:  # the alternate screen is left
            shown += os.read(terminal, 4096)
        assert process.wait(60) == 130
    finally:
        os.close(terminal)
    assert b"3 of 8 run" in shown
