"""The service as an operator and a client see it."""

import http.client
import json
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PAYLOAD = Path("/mnt")
UNIT = "numaserve.service"
PORT = 8000
CONFIG = Path("/etc/numaserve/numaserve.yaml")
MODEL = str(PAYLOAD / "model") if (PAYLOAD / "model").exists() else "demo"
NAME = "demo"  # of the model in requests
CONTEXT = 4096  # tokens
STEP_SECONDS = 900  # where an emulated processor has a part of a real one
DEADLINE = 3600.0  # seconds: an emulated processor is some fifty times slower, on a busy host more


class Rebooting(Exception):
    """Raised by a check that goes on after the machine has booted again."""


def run(*command: str, **environment: str) -> str:
    """What a command prints. Raises `AssertionError` with its errors where it fails."""
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={"PATH": "/usr/sbin:/usr/bin", **environment}
    )
    assert done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-600:]}"
    return done.stdout


def show(name: str, unit: str = UNIT) -> str:
    """A property of a unit."""
    return run("systemctl", "show", "-P", name, unit).strip()


def wait_until(what: str, holds: Callable[[], object], seconds: float = DEADLINE) -> Any:
    """What `holds` returns when that is true of anything. Raises `AssertionError` when it is not within `seconds`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := holds():
            return found
        time.sleep(0.25)
    raise AssertionError(f"not within {seconds:.0f} s: {what}")


def settings(name: str, *lines: str) -> None:
    """Set properties of the service's section for its next start; without any, take them back."""
    folder = Path(f"/run/systemd/system/{UNIT}.d")
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}.conf"
    if lines:
        file.write_text("\n".join(["[Service]", *lines, ""]))
    else:
        file.unlink(missing_ok=True)
    run("systemctl", "daemon-reload")


def get(path: str, method: str = "GET", body: object = None, port: int = PORT) -> tuple[int, bytes]:
    """Status and body of an answer; status 0 where nobody listens."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE)
    try:
        text = None if body is None else json.dumps(body)
        connection.request(method, path, text, {"content-type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    except ConnectionError:
        return 0, b""
    finally:
        connection.close()


def request(tokens: int, model: str = NAME, **more: object) -> dict[str, object]:
    """A request of so many tokens, whose answer is always the same: they are drawn, but by a seed."""
    prompt = "Once upon a time"
    return {"model": model, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "seed": 1, **more}


def complete(tokens: int = 8, model: str = NAME) -> str:
    """The text of a completion. Raises `AssertionError` for any other answer."""
    status, body = get("/v1/completions", "POST", request(tokens, model))
    assert status == 200, f"status {status}: {body[:300]!r}"
    return str(json.loads(body)["choices"][0]["text"])


def metric(name: str, model: str = NAME) -> float:
    """Return the sum of a metric's series. A gateway omits a model's server that does not answer in time."""

    def series() -> list[str]:
        lines = get("/metrics")[1].decode().splitlines()
        return [line for line in lines if line.startswith(name + "{") and f'model_name="{model}"' in line]

    return sum(float(line.rsplit(" ", 1)[1]) for line in wait_until(f"{name} of {model} is told", series, 300))


def workers(model: str = NAME) -> list[dict[str, Any]]:
    """The ranks that the server tells of: their processes, nodes and cores."""
    found: list[dict[str, Any]] = json.loads(get(f"/server_info?model={model}")[1])["workers"]
    return found


def is_alive(pid: int) -> bool:
    """Whether there is a process of that number."""
    return Path(f"/proc/{pid}").exists()


def restarted() -> None:
    """Have the service started again, with what `settings` says by now."""
    run("systemctl", "restart", UNIT)
    assert get("/readyz")[0] == 200, "the unit is active before it serves"


def main_pid() -> int:
    """The front end's process."""
    return int(show("MainPID"))


class Stream(threading.Thread):
    """A streamed completion, read as it comes."""

    def __init__(self, tokens: int, model: str = NAME) -> None:
        super().__init__(daemon=True)
        self.body = request(tokens, model, stream=True)
        self.events: list[str] = []
        self.problem = ""
        self.left = False  # set to have it go without waiting for the end
        self.start()

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=DEADLINE)
        try:
            connection.request("POST", "/v1/completions", json.dumps(self.body), {"content-type": "application/json"})
            for line in connection.getresponse():
                if self.left:
                    break
                if line.startswith(b"data: "):
                    self.events.append(line[6:].strip().decode())
        except (OSError, http.client.HTTPException) as error:
            self.problem = repr(error)
        finally:
            connection.close()

    def wait_for(self, events: int) -> None:
        """Wait until so many events have come."""
        wait_until(f"{events} events of a stream", lambda: len(self.events) >= events or not self.is_alive())

    def text(self) -> str:
        """The text when the stream has ended. Raises `AssertionError` where it did not end well."""
        self.join(DEADLINE)
        assert not self.problem, f"a stream broke off: {self.problem}"
        assert self.events[-1:] == ["[DONE]"], f"a stream ended with {self.events[-1:]}"
        parts = [json.loads(event) for event in self.events[:-1]]
        errors = [part["error"] for part in parts if "error" in part]
        assert not errors, f"a stream ended with an error: {errors[0]}"
        return "".join(part["choices"][0]["text"] for part in parts)
