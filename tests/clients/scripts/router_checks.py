"""What a router before two servers must do, asked over plain HTTP."""

import contextlib
import http.client
import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from checks import ANSWER, BIN, MODEL, SETTING, check, user
from processes import free_port, running

PATIENCE_S = 90.0
FIRST = {"model": MODEL, "messages": [user()], "max_tokens": 12, "temperature": 0}
PROMPT = {"model": MODEL, "prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}


def check_router(command: list[str], modes: dict[str, list[str]]) -> None:
    """Run `command` with the options of each mode in turn, and all checks against it."""
    for mode, options in modes.items():
        ports = {"--port": str(free_port()), "--prometheus-port": str(free_port())}
        arguments = [*options, "--worker-urls", *SETTING["urls"], *(word for pair in ports.items() for word in pair)]
        with running([str(BIN / command[0]), *command[1:], *arguments], sys.stderr) as process:
            url = f"http://127.0.0.1:{ports['--port']}"
            print(f"--- {mode}", file=sys.stderr)
            _until_ready(url, process)
            for name, body in CHECKS.items():
                check(name)(partial(body, url))


def _until_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    # Routers answer /health before they know a server; an answer is what shows that they do.
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError):
            if _post(url, "chat/completions", FIRST | {"max_tokens": 1})[0] == 200:
                return
        time.sleep(0.5)
    raise RuntimeError(f"the router does not answer, status {process.poll()}")


def _post(url: str, route: str, body: dict[str, Any]) -> tuple[int, str]:
    return _ask(url, "POST", route, json.dumps(body))


def _ask(url: str, method: str, route: str, body: str | None = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=PATIENCE_S)
    with contextlib.closing(connection):
        connection.request(method, f"/v1/{route}", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def _answer(url: str, route: str, body: dict[str, Any]) -> dict[str, Any]:
    status, text = _post(url, route, body)
    assert status == 200, f"{status} {text}"
    return json.loads(text)["choices"][0]


def _events(url: str, route: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    status, text = _post(url, route, body | {"stream": True, "stream_options": {"include_usage": True}})
    assert status == 200, f"{status} {text}"
    payloads = [line.removeprefix("data:").strip() for line in text.splitlines() if line.startswith("data:")]
    assert payloads[-1] == "[DONE]", text
    events = [json.loads(payload) for payload in payloads[:-1]]
    assert events[-1]["usage"]["completion_tokens"] > 0, text
    return [choice for event in events for choice in event["choices"]]


def _models(url: str) -> None:
    names = {model["id"] for model in json.loads(_ask(url, "GET", "models")[1])["data"]}
    assert names == {MODEL}, names


def _chat(url: str) -> None:
    assert ANSWER in _answer(url, "chat/completions", FIRST)["message"]["content"]


def _chat_stream(url: str) -> None:
    choices = _events(url, "chat/completions", FIRST)
    assert ANSWER in "".join(choice["delta"].get("content") or "" for choice in choices)


def _second_turn(url: str) -> None:
    message = _answer(url, "chat/completions", FIRST)["message"]
    turns = [user(), message, user("And of Spain?")]
    assert _answer(url, "chat/completions", FIRST | {"messages": turns})["message"]["content"]


def _completion(url: str) -> None:
    assert ANSWER in _answer(url, "completions", PROMPT)["text"]


def _completion_stream(url: str) -> None:
    assert ANSWER in "".join(choice["text"] for choice in _events(url, "completions", PROMPT))


def _log_probabilities(url: str) -> None:
    choice = _answer(url, "chat/completions", FIRST | {"logprobs": True, "top_logprobs": 2})
    assert len(choice["logprobs"]["content"][0]["top_logprobs"]) == 2
    assert _answer(url, "completions", PROMPT | {"logprobs": 1})["logprobs"]["tokens"]


def _errors(url: str) -> None:
    status, text = _post(url, "chat/completions", FIRST | {"top_p": 3})
    assert status == 400, f"{status} {text}"
    assert "top_p" in text, text


CHECKS: dict[str, Callable[[str], None]] = {
    "models": _models,
    "chat": _chat,
    "chat stream": _chat_stream,
    "second turn": _second_turn,
    "completion": _completion,
    "completion stream": _completion_stream,
    "log-probabilities": _log_probabilities,
    "errors": _errors,
}
