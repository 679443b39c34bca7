"""Several models of one gateway: a process for each, over fake workers."""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import httpx
import psutil
import pytest
from numaserve.workers.interface.protocol import PAGE_SIZE
from numaserve.workers.planning.topology import read_topology
from served import Process, announced_url, completion

from tests.support.forked import Forked, processes_since
from tests.support.living import await_ends, lives

SERVE_FLEET = Path(__file__).with_name("serve_fleet.py")
CORES = [cpu for node in read_topology().nodes for cpu in node.cpus]
pytestmark = pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")

ServeFleet = Callable[..., Process]
PLACES: Mapping[str, object] = {
    name: {"cores": core, "memory": "1GiB", "kv_cache_gib": 0.01, "weights_cache_gib": 0}
    for name, core in zip("ab", CORES, strict=False)
}


@pytest.fixture
def serve_fleet(model: Path, tmp_path: Path, log: Path) -> Iterator[ServeFleet]:
    """Start a gateway. With `execute` the gateway, its servers and their workers are executed instead of forked."""
    started: list[Process] = []

    def start(
        *words: str, models: Mapping[str, Mapping[str, object]], execute: bool = False, **whole: object
    ) -> Process:
        file = tmp_path / "models.yaml"
        places = {name: {"model": str(model), **PLACES[name], **each} for name, each in models.items()}
        file.write_text(json.dumps({"models": places, **whole}))
        with log.open("w") as errors:
            command = [sys.executable, str(SERVE_FLEET), str(file), *words]
            run = subprocess.Popen if execute else Forked
            process = run(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.terminate()
        process.wait(60)
        process.communicate()


def servers(process: Process) -> dict[str, psutil.Process]:
    """The servers of the models by name, in the order in which they were started."""
    return dict(zip("ab", processes_since(process, "model_fake"), strict=False))


def states(client: httpx.Client) -> dict[str, str]:
    return {each["id"]: each["state"] for each in client.get("/v1/models").json()["data"]}


def until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.02)


def asked(name: str, count: int, **more: object) -> dict[str, object]:
    return {**completion(count), "model": name, **more}


@pytest.mark.parametrize(
    ("of_default", "route"),
    [({"task": "embed"}, "/v1/embeddings"), ({}, "/v1/completions"), ({"chat_template": "x"}, "/v1/chat/completions")],
)
def test_the_line_to_paste_fits_the_default_model_before_that_is_loaded(
    serve_fleet: ServeFleet, tmp_path: Path, of_default: dict[str, str], route: str
) -> None:
    (tmp_path / "x").write_text("{{ messages }}")
    if "chat_template" in of_default:
        of_default = {"chat_template": str(tmp_path / "x")}
    process = serve_fleet(models={"a": {}, "b": {"load": "request", **of_default}}, default="b")
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("b is served at http://127.0.0.1:")
    assert shlex.split(line.partition(" - try: ")[2])[1].endswith(route)


def test_a_request_goes_to_the_model_that_it_names(serve_fleet: ServeFleet) -> None:
    process = serve_fleet(models={"a": {}, "b": {"served_model_name": "bee"}}, default="b")
    with httpx.Client(base_url=announced_url(process), timeout=60) as client:
        assert states(client) == {"a": "ready", "b": "ready", "bee": "ready"}
        bee = client.get("/v1/models/bee").json()
        assert bee["max_model_len"] > 0 and "/" not in bee["root"]
        for name, answered in {"a": "a", "b": "b", "bee": "b"}.items():
            answer = client.post("/v1/completions", json=asked(name, 5)).json()
            assert (answer["model"], answer["usage"]["completion_tokens"]) == (answered, 5)
        unnamed = {key: value for key, value in asked("", 2).items() if key != "model"}
        assert client.post("/v1/completions", json=unnamed).json()["model"] == "b"
        for path in ("/v1/completions", "/v1/messages", "/api/chat", "/models/a"):
            assert client.post(path, json={"model": "../a"}).status_code == 404
        assert client.post("/api/show", json={"model": "a:latest"}).status_code == 200
        assert client.get("/v1/models/c").status_code == 404
        document = client.get("/openapi.json").json()
        assert {"/v1/completions", "/models/load"} <= document["paths"].keys()
        assert "security" not in document["paths"]["/v1/completions"]["post"]
        assert client.post("/v1/completions", content=b"{").status_code == 400
        assert client.post("/v1/completions", json={"model": 1}).status_code == 400
        assert client.get("/readyz").status_code == 200
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0


def test_the_service_manager_hears_ready_when_all_models_of_the_start_are(
    serve_fleet: ServeFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.bind(str(tmp_path / "notify"))
        notify.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        process = serve_fleet(models={"a": {}, "b": {"load": "request"}})
        url = announced_url(process)
        messages = [notify.recv(4096).decode()]
        while "READY=1" not in messages[-1]:
            messages.append(notify.recv(4096).decode())
        assert messages == ["STATUS=loading models", f"READY=1\nSTATUS=serving 2 models at {url}"]
        with httpx.Client(base_url=url) as client:
            assert states(client) == {"a": "ready", "b": "unloaded"}
        process.send_signal(signal.SIGTERM)
        assert notify.recv(4096).decode().startswith("STOPPING=1")
    assert process.wait(60) == 0


def test_a_model_that_cannot_be_served_at_the_start_ends_it_with_its_status(serve_fleet: ServeFleet, log: Path) -> None:
    assert serve_fleet(models={"a": {"backend": "reference", "tp": 2}}).wait(60) == 2
    assert "model 'a'" in log.read_text()
    assert serve_fleet("--", "--die-loading", models={"a": {}, "b": {"load": "request"}}).wait(60) == 1
    assert "model a could not be started" in log.read_text()


def test_the_servers_of_models_log_in_the_format_of_the_gateway(serve_fleet: ServeFleet, log: Path) -> None:
    process = serve_fleet("log_format=text", models={"a": {}})
    with httpx.Client(base_url=announced_url(process), timeout=60) as client:
        until(lambda: states(client) == {"a": "ready"})
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    lines = log.read_text().splitlines()
    assert not [line for line in lines if line.startswith("{")]
    assert any(line.endswith(" INFO loading model a") for line in lines)
    assert any(" model='a'" in line for line in lines)


def test_the_end_of_one_server_touches_no_other(serve_fleet: ServeFleet) -> None:
    process = serve_fleet("--", "--step-ms", "20", models={"a": {}, "b": {}})
    with httpx.Client(base_url=announced_url(process), timeout=60) as client:
        first = servers(process)
        with client.stream("POST", "/v1/completions", json=asked("b", 60, stream=True)) as other:
            lines = (line for line in other.iter_lines() if line)
            next(lines)
            with client.stream("POST", "/v1/completions", json=asked("a", 4000, stream=True)) as cut:
                payloads = (line.removeprefix("data: ") for line in cut.iter_lines() if line)
                next(payloads)
                first["a"].kill()
                *_, error, done = payloads
            assert json.loads(error)["error"]["code"] == "server_ended"
            assert done == "[DONE]"
            until(lambda: states(client)["a"] == "loading")
            assert client.get("/readyz").status_code == 503
            waited = client.post("/v1/completions", json=asked("a", 3))
            assert (waited.status_code, waited.json()["usage"]["completion_tokens"]) == (200, 3)
            assert [*lines][-1] == "data: [DONE]"
        assert client.get("/readyz").status_code == 200
        assert first["b"].is_running()


def test_a_server_is_started_again_when_its_old_workers_have_ended(serve_fleet: ServeFleet, log: Path) -> None:
    process = serve_fleet(models={"a": {}, "b": {"load": "request"}})
    with httpx.Client(base_url=announced_url(process), timeout=60) as client:
        (worker,) = processes_since(process, "fake_worker")
        worker.suspend()
        servers(process)["a"].kill()
        until(lambda: states(client)["a"] == "loading")
        time.sleep(0.2)
        assert log.read_text().count('"message": "loading model a"') == 1
        worker.resume()
        assert client.post("/v1/completions", json=asked("a", 3)).status_code == 200
        assert not lives(worker)


def test_servers_and_workers_end_with_a_gateway_that_is_killed(serve_fleet: ServeFleet) -> None:
    process = serve_fleet(models={"a": {}, "b": {}}, execute=True)
    announced_url(process)
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(family) >= 4
    os.kill(process.pid, signal.SIGKILL)
    process.wait(60)
    assert not await_ends(family)


def test_a_running_stream_is_finished_at_sigterm(serve_fleet: ServeFleet) -> None:
    process = serve_fleet("--", "--step-ms", "20", models={"a": {}, "b": {"load": "request"}})
    with (
        httpx.Client(base_url=announced_url(process), timeout=60) as client,
        client.stream("POST", "/v1/completions", json=asked("a", 40, stream=True)) as stream,
    ):
        lines = (line for line in stream.iter_lines() if line)
        next(lines)
        process.send_signal(signal.SIGTERM)
        until(lambda: client.get("/readyz").status_code == 503)
        assert client.post("/v1/completions", json=asked("b", 1)).status_code == 503
        *_, done = lines
    assert done == "data: [DONE]"
    assert process.wait(60) == 0


def test_each_model_divides_its_cache_by_key_and_only_one_that_events_report_does_not(
    serve_fleet: ServeFleet, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("alice\nbob\ncarol cache-group=team\ndave cache-group=team\n")
    keys.chmod(0o600)
    process = serve_fleet(f"api_key_file={keys}", models={"a": {}, "b": {"kv_events": "tcp://127.0.0.1:0"}})
    cached: dict[str, list[int]] = {"a": [], "b": []}
    with httpx.Client(base_url=announced_url(process), timeout=60) as client:
        for name, found in cached.items():
            for key in ("alice", "bob", "carol", "dave"):
                body = asked(name, 1, prompt=[11] * 2 * PAGE_SIZE)
                answer = client.post("/v1/completions", json=body, headers={"X-Api-Key": key}).json()
                found.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert cached == {"a": [0, 0, 0, PAGE_SIZE], "b": [0, PAGE_SIZE, 0, PAGE_SIZE]}


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_running_streams_with_an_error(serve_fleet: ServeFleet, second: signal.Signals) -> None:
    process = serve_fleet("drain_seconds=3600", "--", "--step-ms", "20", models={"a": {}, "b": {"load": "request"}})
    with (
        httpx.Client(base_url=announced_url(process), timeout=60) as client,
        client.stream("POST", "/v1/completions", json=asked("a", 4000, stream=True)) as stream,
    ):
        payloads = (line.removeprefix("data: ") for line in stream.iter_lines() if line)
        next(payloads)
        process.send_signal(signal.SIGTERM)
        until(lambda: client.get("/readyz").status_code == 503)
        next(payloads)
        process.send_signal(second)
        *_, error, done = payloads
    assert "shutting down" in json.loads(error)["error"]["message"]
    assert done == "[DONE]"
    assert process.wait(60) == 0
