"""The probes of deploy/kubernetes over a container that is started and ended as its pod is."""

import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.container.image import Container, Image
from tests.support.demo import demo_model

BASE = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes" / "base"
STARTUP, READINESS, LIVENESS = PROBES = ("startupProbe", "readinessProbe", "livenessProbe")


def check_probes(image: Image) -> None:
    """A pod that loads is not started, one that serves is ready, one that drains is not ready and yet alive."""
    pod = yaml.safe_load((BASE / "deployment.yaml").read_text())["spec"]["template"]["spec"]
    (described,) = pod["containers"]
    paths = {probe: described[probe]["httpGet"]["path"] for probe in PROBES}
    command, *arguments = described["args"]
    assert command == "serve"
    model = demo_model()
    options = (
        *("--volume", f"{BASE}/numaserve.yaml:/etc/numaserve/numaserve.yaml:ro"),
        *("--volume", f"{model.parent}:/models:ro"),
    )
    with tempfile.TemporaryDirectory() as folder:
        serve = (*arguments, f"/models/{model.name}", "--kv-cache-gib", "0.1")
        with image.running(*options, serve=serve, log=Path(folder) / "log") as container:
            loading = _until_started(container, paths)
            assert passing(container, paths) == {*PROBES}
            with _Request(container.url) as request:
                container.terminate()
                begin = time.monotonic()
                while container.status(paths[READINESS]) == 200:
                    time.sleep(0.05)
                found = passing(container, paths)
                assert request.is_running, "nothing was left to drain"
                assert found == {LIVENESS}, "a pod that drains"
            assert request.finish_reason == "length", "a drained request ends as it would have"
            assert container.process.wait(60) == 0, "a drained server exits with 0"
            assert time.monotonic() - begin < pod["terminationGracePeriodSeconds"]
    print(f"probes: {loading} times not started while the model was loaded, then ready; not ready but alive in a drain")


def passing(container: Container, paths: dict[str, str]) -> set[str]:
    """The probes that succeed: Kubernetes takes any status from 200 to 399 for that."""
    answers = {probe: container.status(path) for probe, path in paths.items()}
    return {probe for probe, status in answers.items() if status is not None and 200 <= status < 400}


def _until_started(container: Container, paths: dict[str, str]) -> int:
    loading = 0
    while STARTUP not in passing(container, paths):
        assert container.process.poll() is None, container.log.read_text()
        loading += 1
        time.sleep(0.1)
    assert loading, "the model was loaded at once"
    return loading


class _Request:
    """A long request that runs beside."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._thread = threading.Thread(target=self._run)
        self._answer: dict[str, Any] = {}

    def __enter__(self) -> "_Request":
        self._thread.start()
        while not self._tokens():
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()

    @property
    def is_running(self) -> bool:
        """Whether there is no answer yet."""
        return self._thread.is_alive()

    @property
    def finish_reason(self) -> str:
        """Why the answer ended."""
        return str(self._answer["choices"][0]["finish_reason"])

    def _tokens(self) -> bool:
        metrics = httpx.get(f"{self._url}/metrics").text.splitlines()
        return any(line.startswith("vllm:num_requests_running") and float(line.split()[-1]) > 0 for line in metrics)

    def _run(self) -> None:
        body = {"prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": True, "temperature": 0}
        self._answer = httpx.post(f"{self._url}/v1/completions", json=body, timeout=60).json()
