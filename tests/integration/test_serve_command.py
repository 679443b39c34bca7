"""The serve command as a process of its own, over fake workers."""

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import time
from pathlib import Path

import httpx
import psutil
from served import Serve, announced_url, completion


def test_the_start_ends_with_a_curl_that_can_be_pasted(serve: Serve) -> None:
    process = serve(execute=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert " - try: " in line
    words = shlex.split(line.split("try: ")[1])
    assert words[0] == "curl"
    body = json.loads(words[words.index("-d") + 1])
    assert httpx.post(words[1], json=body).json()["usage"]["completion_tokens"] == 16
    url = words[1].removesuffix("/v1/completions")
    assert httpx.get(url + "/health").status_code == 200
    answer = httpx.post(url + "/v1/completions", json=completion(5)).json()
    assert answer["usage"]["completion_tokens"] == 5
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0


def test_two_ranks_are_served_through_a_ring(serve: Serve) -> None:
    process = serve("tp=2") if len(os.sched_getaffinity(0)) > 1 else serve()
    url = announced_url(process)
    answer = httpx.post(url + "/v1/completions", json=completion(5))
    assert answer.json()["usage"]["completion_tokens"] == 5


def test_sigterm_finishes_the_running_stream_and_refuses_new_work(serve: Serve) -> None:
    process = serve("--", "--step-ms", "20")
    url = announced_url(process)
    body = completion(40, stream=True)
    with httpx.Client(timeout=60) as client, client.stream("POST", url + "/v1/completions", json=body) as stream:
        lines = (line for line in stream.iter_lines() if line)
        next(lines)
        process.send_signal(signal.SIGTERM)
        refused = 0
        while refused != 503:  # the signal arrives a little later
            refused = httpx.post(url + "/v1/completions", json=completion(1)).status_code
        *_, last_chunk, done = lines
    assert done == "data: [DONE]"
    assert json.loads(last_chunk.removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
    assert process.wait(30) == 0


def test_a_second_signal_ends_running_streams_with_an_error(serve: Serve) -> None:
    process = serve("drain_seconds=3600", "--", "--step-ms", "50")
    url = announced_url(process)
    body = completion(4000, stream=True)
    with httpx.Client(timeout=60) as client, client.stream("POST", url + "/v1/completions", json=body) as stream:
        lines = (line for line in stream.iter_lines() if line)
        next(lines)
        process.send_signal(signal.SIGINT)
        while httpx.get(url + "/health").status_code == 200:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        *tokens, error, done = lines
    assert len(tokens) < 4000
    assert "shutting down" in json.loads(error.removeprefix("data: "))["error"]["message"]
    assert done == "data: [DONE]"
    assert process.wait(30) == 0


def test_a_thread_that_is_at_a_long_text_does_not_hold_the_end(serve: Serve) -> None:
    process = serve("--", "--step-ms", "1", environment={"FAKE_BUSY_THREAD": "1"})
    announced_url(process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0


def test_the_service_manager_hears_ready_only_when_requests_are_served(serve: Serve, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        path = str(tmp_path / "notify")
        notify.bind(path)
        notify.settimeout(30)
        process = serve(environment={"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "200000"})
        url = announced_url(process)
        messages: list[str] = []
        while messages.count("WATCHDOG=1") < 2:
            messages.append(notify.recv(4096).decode())
        process.send_signal(signal.SIGTERM)
        while "STOPPING=1" not in messages[-1]:
            messages.append(notify.recv(4096).decode())
    ready = [index for index, message in enumerate(messages) if "READY=1" in message]
    assert len(ready) == 1
    assert f"serving tiny-model at {url}" in messages[ready[0]]
    assert messages[0] == "STATUS=loading tiny-model"
    assert all(message.startswith("STATUS=loading") for message in messages[: ready[0]])
    assert "WATCHDOG=1" not in messages[: ready[0]]
    assert process.wait(30) == 0


def test_keys_are_asked_for_when_there_is_a_key_file(serve: Serve, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("secret\n")
    keys.chmod(0o600)
    url = announced_url(serve(f"api_key_file={keys}"))
    assert httpx.get(url + "/v1/models").status_code == 401
    listed = httpx.get(url + "/v1/models", headers={"Authorization": "Bearer secret"})
    assert listed.status_code == 200
    assert "/" not in listed.json()["data"][0]["root"]  # the model is a folder


def test_a_port_in_use_is_one_line_and_status_2(serve: Serve, log: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert serve(f"port={taken.getsockname()[1]}").wait(30) == 2
    errors = log.read_text()
    assert errors.strip().endswith("choose another --port")
    assert errors.count("\n") == 1


def test_workers_that_cannot_load_end_the_server_with_status_1_and_their_reason(serve: Serve, log: Path) -> None:
    assert serve("--", "--fail-load", "the disk is on fire").wait(30) == 1
    assert "the disk is on fire" in log.read_text()


def test_an_engine_that_gives_up_ends_the_server_with_status_1(serve: Serve) -> None:
    process = serve("--", "--die-at-step", "0")
    url = announced_url(process)
    with httpx.Client(timeout=30) as client, contextlib.suppress(httpx.TransportError):
        while True:
            client.post(url + "/v1/completions", json=completion(2))
            time.sleep(0.02)
    assert process.wait(30) == 1


def test_the_model_s_sampling_defaults_apply_unless_none_are_wanted(serve: Serve, model: Path) -> None:
    (model / "generation_config.json").write_text(json.dumps({"temperature": 0.5, "top_k": 7, "do_sample": False}))
    shown = httpx.get(f"{announced_url(serve())}/server_info").json()
    assert shown["sampling_defaults"] == {"temperature": 0.5, "top_k": 7}
    shown = httpx.get(f"{announced_url(serve('generation_config=none'))}/server_info").json()
    assert shown["sampling_defaults"] == {}


def test_sampling_defaults_out_of_range_are_one_line_and_status_2(serve: Serve, model: Path, log: Path) -> None:
    (model / "generation_config.json").write_text(json.dumps({"top_p": 1.5}))
    assert serve().wait(30) == 2
    (line,) = log.read_text().splitlines()
    assert "top_p is 1.5" in line


def test_what_a_worker_says_when_it_crashes_is_json_too(serve: Serve, log: Path) -> None:
    process = serve(environment={"PYTHONFAULTHANDLER": "1"}, execute=True)
    announced_url(process)
    (worker,) = (
        each for each in psutil.Process(process.pid).children() if any("fake_worker" in word for word in each.cmdline())
    )
    worker.send_signal(signal.SIGABRT)
    while "was killed by SIGABRT" not in log.read_text():
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    records = [json.loads(line) for line in log.read_text().splitlines()]
    words, end = (
        next(index for index, record in enumerate(records) if text in record["message"])
        for text in ("Fatal Python error: Aborted", "was killed by SIGABRT")
    )
    assert words < end
    assert (records[words]["rank"], records[words]["pid"]) == (0, worker.pid)


def test_the_text_log_of_a_file_has_one_dated_line_an_event_without_colours(serve: Serve, log: Path) -> None:
    process = serve("log_format=text")
    announced_url(process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    lines = log.read_text().splitlines()
    assert lines and all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (DEBUG|INFO|WARNING) \S", line) for line in lines)
    assert any(" INFO serving tiny-model " in line for line in lines), "the report of the start, too"
