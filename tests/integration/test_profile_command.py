"""`numaserve profile` against a server over fake workers."""

import asyncio
import json
import socket
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest
from harness import Options, Server, serving, until
from numaserve.server.cli.main import main


async def command(server: Server, *options: str) -> object:
    """The exit status."""
    return await asyncio.to_thread(status_of, "profile", str(server.client.base_url), *options)


def status_of(*arguments: str) -> object:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    return caught.value.code


async def test_a_stream_of_its_own_is_shown_by_phase(capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(Options(ranks=2, faults=["--step-ms", "2"])) as server:
        options = ("--prompt-tokens", "100", "--output-tokens", "200")
        assert await command(server, *options) == 0
        assert await command(server, *options, "--json") == 0
    table, _, data = capsys.readouterr().out.partition("[{")
    assert "prefill, rank 0: 2 steps" in table  # 64 tokens, then 36
    assert "decode, rank 0: " in table
    assert "0.005 ms (10.0%) of waiting for other ranks" in table
    phases: list[dict[str, Any]] = json.loads("[{" + data)
    assert [(phase["name"], phase["rank"]) for phase in phases] == [
        ("prefill", 0),
        ("prefill", 1),
        ("decode", 0),
        ("decode", 1),
    ]
    assert phases[0]["steps"] == 2
    assert all(0 <= phase["cpu_wait"] < 1 for phase in phases)
    assert 0 < phases[2]["steps"] < 200
    assert phases[2]["ceilings"] == {"isa": "fake", "threads": 1, "read_bytes_s": 1e9, "flops_s": {"bf16": 1e9}}
    linear = phases[2]["costs"][0]
    assert (linear["name"], linear["ms"], linear["share"], linear["ceiling"]) == ("linear", 0.03, 0.6, "flops")


async def test_others_traffic_is_watched_without_sending_any(capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(Options(faults=["--step-ms", "2"])) as server:
        working = asyncio.create_task(server.complete(prompt=[11, 12], max_tokens=500))
        await until(lambda: int(str(server.engine.server_info()["steps"])) > 0)
        assert await command(server, "--seconds", "0.1") == 0
        assert not working.done()
        assert server.metric("prompt_tokens_total") == 2
        assert (await working).status_code == 200
        assert await command(server, "--seconds", "0.01") == 2
    out, err = capsys.readouterr()
    assert "traffic, rank 0: " in out
    assert "not measured, because requests were running" in out
    assert "no step ran" in err


async def test_bandwidth_that_was_not_measured_is_told_to_be_so(capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(Options(faults=["--step-ms", "2", "--small-weights"])) as server:
        options = ("--prompt-tokens", "100", "--output-tokens", "200")
        assert await command(server, *options) == 0
        assert await command(server, *options, "--json") == 0
    table, _, data = capsys.readouterr().out.partition("[{")
    assert "memory reads not measured" in table
    assert "bf16 0.001 TFLOP/s" in table
    phases: list[dict[str, Any]] = json.loads("[{" + data)
    assert {phase["ceilings"]["read_bytes_s"] for phase in phases} == {None}
    assert {cost["ceiling"] for phase in phases for cost in phase["costs"]} == {"flops", None}


async def test_what_the_server_refuses_is_told_in_its_own_words(capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(Options(context=64, faults=["--step-ms", "2"])) as server:
        assert await command(server, "--prompt-tokens", "100") == 2
        assert await command(server, "--rank", "3", "--prompt-tokens", "8", "--output-tokens", "50") == 2
    too_long, no_rank = capsys.readouterr().err.splitlines()
    assert "answered 400: This model's maximum context length is 64 tokens" in too_long
    assert "--rank 3 does not exist: the server has ranks 0 to 0" in no_rank


class Other(BaseHTTPRequestHandler):
    """A server of another kind: it wants a key at one path and answers HTML at all others."""

    def do_GET(self) -> None:
        self.send_response(401 if self.path.startswith("/locked") else 200)
        self.end_headers()
        self.wfile.write(b"<html>")

    def log_message(self, *_: Any) -> None:
        pass


def test_servers_that_are_none_are_one_line_and_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with HTTPServer(("127.0.0.1", 0), Other) as other:
        thread = Thread(target=other.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{other.server_port}"
        urls = [url, f"{url}/locked", f"http://127.0.0.1:{port}", "http://127.0.0.1:port", "file:///etc"]
        statuses = [status_of("profile", each) for each in urls]
        other.shutdown()
        thread.join()
    assert statuses == [2] * 5
    html, locked, none, no_port, no_url = capsys.readouterr().err.splitlines()
    assert "is not a numaserve server" in html
    assert "answered 401: no explanation; name a file with an API key with --api-key-file" in locked
    assert "Check that the server is running" in none
    assert "nonnumeric port" in no_port
    assert "is not a valid URL" in no_url
