"""The serve command at a Unix socket, over TLS and with API keys, and what SIGHUP changes."""

import os
import pty
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from served import Serve, announced_url, completion

from tests.support.certificates import Files, make_certificate
from tests.support.living import await_ends


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ns") as short:  # tmp_path may be too long for a socket
        yield Path(short) / "s"


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return make_certificate(tmp_path / "first")


def tls_options(files: Files) -> list[str]:
    return [f"ssl_certfile={files.certfile}", f"ssl_keyfile={files.keyfile}"]


def wait_for(log: Path, text: str) -> None:
    while text not in log.read_text():
        time.sleep(0.02)


def test_a_unix_socket_serves_and_is_gone_afterwards(serve: Serve, path: Path) -> None:
    process = serve(f"uds={path}")
    assert process.stdout is not None
    line = process.stdout.readline()
    assert f" is served at {path} - try: curl --unix-socket {path} http://localhost/v1/completions" in line
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://localhost") as client:
        answer = client.post("/v1/completions", json=completion(5)).json()
        assert answer["usage"]["completion_tokens"] == 5
        assert serve(f"uds={path}").wait(60) == 2
        assert client.get("/health").status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert not path.exists()


def test_a_unix_socket_is_gone_after_a_start_that_fails(serve: Serve, path: Path) -> None:
    assert serve(f"uds={path}", "--", "--fail-load", "no").wait(60) == 1
    assert not path.exists()
    assert serve(f"uds={path}", "kv_cache_gib=1e-9").wait(60) == 2
    assert not path.exists()


def test_streams_finish_over_tls_and_idle_connections_do_not_hold_the_end(serve: Serve, files: Files) -> None:
    process = serve(*tls_options(files), "--", "--step-ms", "20")
    url = announced_url(process)
    assert url.startswith("https://127.0.0.1:")
    idle = httpx.Client(verify=files.client())
    assert idle.get(url + "/health").status_code == 200
    body = completion(40, stream=True)
    with (
        httpx.Client(timeout=60, verify=files.client()) as client,
        client.stream("POST", url + "/v1/completions", json=body) as stream,
    ):
        lines = (line for line in stream.iter_lines() if line)
        next(lines)
        process.send_signal(signal.SIGTERM)
        *_, done = lines
    assert done == "data: [DONE]"
    assert process.wait(60) == 0
    idle.close()


def test_sighup_reads_certificate_and_keys_again(serve: Serve, files: Files, tmp_path: Path, log: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("old\n")
    keys.chmod(0o600)
    process = serve(*tls_options(files), f"api_key_file={keys}")
    url = announced_url(process)
    old, new = ({"Authorization": f"Bearer {key}"} for key in ("old", "new"))
    trust_first = files.client()
    with httpx.Client(verify=trust_first, base_url=url) as connected:
        assert connected.get("/v1/models", headers=old).status_code == 200
        other = make_certificate(tmp_path / "second")
        files.overwrite(other)
        keys.write_text("new\n")
        process.send_signal(signal.SIGHUP)
        wait_for(log, "reloaded: certificate")
        assert connected.get("/v1/models", headers=old).status_code == 401
        assert connected.get("/v1/models", headers=new).status_code == 200
    assert httpx.get(url + "/health", verify=other.client()).status_code == 200
    with pytest.raises(httpx.ConnectError):
        httpx.get(url + "/health", verify=trust_first)
    files.certfile.write_text("garbage")
    keys.write_text("")
    process.send_signal(signal.SIGHUP)
    wait_for(log, "reloading the certificate failed, keeping the previous ones")
    assert httpx.get(url + "/v1/models", headers=new, verify=other.client()).status_code == 200


def test_limits_of_a_key_hold_and_sighup_changes_them(serve: Serve, tmp_path: Path, log: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("mine name=alice tokens-per-minute=1\ntheirs\n")
    keys.chmod(0o600)
    process = serve(f"api_key_file={keys}")
    mine, theirs = ({"Authorization": f"Bearer {key}"} for key in ("mine", "theirs"))
    with httpx.Client(base_url=announced_url(process), timeout=60) as client:
        used = client.post("/v1/completions", json=completion(50), headers=mine).json()["usage"]["total_tokens"]
        refused = client.post("/v1/completions", json=completion(50), headers=mine)
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        assert 60 < int(refused.headers["retry-after"]) <= 60 * used
        assert client.post("/v1/completions", json=completion(50), headers=theirs).status_code == 200
        keys.write_text("mine concurrent=0\n")
        process.send_signal(signal.SIGHUP)
        wait_for(log, "reloading the API keys failed, keeping the previous ones: line 1 of the API key file")
        assert client.post("/v1/completions", json=completion(50), headers=mine).status_code == 429
        keys.write_text("mine name=alice tokens-per-minute=100000\n")
        process.send_signal(signal.SIGHUP)
        wait_for(log, "reloaded: API keys")
        answer = client.post("/v1/completions", json=completion(5), headers=mine)
        assert answer.status_code == 200
        assert answer.headers["x-ratelimit-limit-tokens"] == "100000"
    assert '"key": "alice"' in log.read_text()
    assert "mine" not in log.read_text()


def test_a_certificate_that_cannot_be_used_is_one_line_and_status_2(serve: Serve, files: Files, log: Path) -> None:
    files.keyfile.write_text("garbage")
    assert serve(*tls_options(files)).wait(60) == 2
    assert log.read_text().count("\n") == 1
    assert str(files.keyfile) in log.read_text()


def test_no_child_sees_the_key_of_the_environment(serve: Serve, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("of-the-file\n")
    keys.chmod(0o600)
    process = serve(f"api_key_file={keys}", environment={"NUMASERVE_API_KEY": "hunter2", "MARK": "here"}, execute=True)
    url = announced_url(process)
    assert httpx.post(url + "/tokenize", json={"prompt": "w1"}).status_code == 401
    for key in ("hunter2", "of-the-file"):
        headers = {"Authorization": f"Bearer {key}"}
        assert httpx.post(url + "/tokenize", json={"prompt": "w1 w2"}, headers=headers).status_code == 200
    server = psutil.Process(process.pid)
    children = server.children(recursive=True)
    assert children
    for each in (server, *children):
        block = Path(f"/proc/{each.pid}/environ").read_bytes()
        assert b"MARK=here" in block
        assert b"hunter2" not in block


@pytest.mark.parametrize(("options", "warns"), [([], True), (["api_key_file"], False)])
def test_an_address_beyond_loopback_without_keys_is_warned_of(
    serve: Serve, tmp_path: Path, log: Path, options: list[str], warns: bool
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("secret\n")
    keys.chmod(0o600)
    # A KV cache without a page ends the start before anything listens.
    process = serve("host=0.0.0.0", "kv_cache_gib=1e-9", *(f"{option}={keys}" for option in options))
    assert process.wait(60) == 2
    assert ("can use the server without a key: set API keys" in log.read_text()) is warns


def test_the_terminal_s_hang_up_ends_the_server(model: Path) -> None:
    script = Path(__file__).with_name("serve_fake.py")
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, str(script), str(model)])  # noqa: S606
    shown = b""
    while b"is served at" not in shown:
        shown += os.read(terminal, 4096)
    children = psutil.Process(pid).children(recursive=True)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert not await_ends(children)
