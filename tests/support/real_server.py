"""`numaserve serve demo` as an operator runs it: a process of its own, with its workers and everything they leave."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.support.forked import Forked, forked_or_executed, processes_since
from tests.support.imported import WORKER
from tests.support.launches import count
from tests.support.living import lives

PATIENCE_S = 60.0
# A client reads the certificates of all authorities when it is made, which takes longer than what is asked with it:
# none of these asks over TLS.
_NO_AUTHORITIES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class RealServer:
    """A running server. Its temporary directory is its own, so that what is left in it can be told.

    Without options it caches no weights; with a `--weights-cache-gib` it does so in `cache`, or in its own folder.
    `program` is what the interpreter runs in place of the command. `several` is a file of models, in place of one. What
    has been prepared for it is forked, see `forked`, unless it is to be `executed`. `environment` has more
    variables; a library that is to be preloaded needs a server that is executed.
    """

    def __init__(
        self,
        *options: str,
        cache: Path | None = None,
        model: str = "demo",
        program: Sequence[str] = ("-m", "numaserve.server.cli.main"),
        several: Path | None = None,
        executed: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ns-"))  # short: socket paths have a limit
        self.log = self.folder / "log"
        inherited = {key: value for key, value in os.environ.items() if not key.endswith("RUNTIME_DIR")}
        own = {"TMPDIR": str(self.folder), "XDG_CACHE_HOME": str(cache or self.folder / "cache")}
        what = [model, "--weights-cache-gib", "0"] if several is None else ["--models", str(several)]
        command = [sys.executable, *program, "serve", *what, "--port", "0", *options]
        if executed:
            count("servers")
        with self.log.open("w") as log:
            self.process = (subprocess.Popen if executed else forked_or_executed)(
                command,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=inherited | own | dict(environment or {}),
            )
        self._family: dict[int, psutil.Process] = {}
        try:
            assert self.process.stdout is not None
            line = self.process.stdout.readline()
            assert " is served at " in line, self.log.read_text()
            self.model, _, rest = line.partition(" is served at ")
            self.url = rest.split()[0]
            self._remember_family()
        except BaseException:
            self.close()
            raise

    def client(self, **more: Any) -> httpx.AsyncClient:
        """For as many connections at once as a test likes."""
        limits = httpx.Limits(max_connections=None)
        return httpx.AsyncClient(base_url=self.url, timeout=PATIENCE_S, limits=limits, verify=_NO_AUTHORITIES, **more)

    def complete(self, prompt: str | list[int], count: int, **more: Any) -> httpx.Response:
        """One completion, greedy and of `count` tokens unless `more` says otherwise."""
        body = completion(prompt, count, **more)
        return httpx.post(f"{self.url}/v1/completions", json=body, timeout=PATIENCE_S, verify=_NO_AUTHORITIES)

    @contextlib.contextmanager
    def stream(self, count: int, **more: Any) -> Iterator[Iterator[str]]:
        """The payloads of a stream that has begun."""
        body = completion("Once upon a time", count, stream=True, **more)
        with (
            httpx.Client(timeout=PATIENCE_S, verify=_NO_AUTHORITIES) as client,
            client.stream("POST", f"{self.url}/v1/completions", json=body) as answer,
        ):
            assert answer.status_code == 200
            payloads = (line.removeprefix("data: ") for line in answer.iter_lines() if line)
            next(payloads)
            yield payloads

    def info(self) -> dict[str, Any]:
        """GET /server_info."""
        return dict(self._get("/server_info").json())

    def metrics(self) -> dict[str, float]:
        """GET /metrics, by name and the values of the labels but the model's name."""
        return metrics_of(self._get("/metrics").text)

    def worker_pids(self) -> list[int]:
        """By rank; empty during a restart."""
        self._remember_family()
        return [worker["pid"] for worker in self.info()["workers"]]

    def is_ready(self) -> bool:
        """GET /health."""
        return self._get("/health").status_code == 200

    def until(self, condition: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
        """Wait for something that no event tells of."""
        end = time.monotonic() + patience_s
        while not condition():
            assert time.monotonic() < end, self.log.read_text()
            time.sleep(0.02)

    def socket_folders(self) -> list[Path]:
        """Where the groups that live keep their sockets."""
        return list(self.folder.glob("numaserve-*"))

    def cpu_seconds(self) -> float:
        """What the server and its children have used so far."""
        self._remember_family()
        return sum(sum(process.cpu_times()[:2]) for process in self._family.values() if lives(process))

    def orphans(self) -> list[psutil.Process]:
        """Processes that the server started and that outlive it."""
        return [each for pid, each in self._family.items() if pid != self.process.pid and lives(each)]

    def terminate(self) -> int:
        """SIGTERM, and the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)

    def close(self) -> None:
        """End it, whatever state it is in, and remove what it left."""
        if self.process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.terminate()
                self.process.wait(10)
            self.process.kill()
        self.process.communicate()
        shutil.rmtree(self.folder)

    def __enter__(self) -> RealServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _get(self, route: str) -> httpx.Response:
        return httpx.get(f"{self.url}{route}", verify=_NO_AUTHORITIES)

    def _remember_family(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            parent = psutil.Process(self.process.pid)
            family = [parent, *parent.children(recursive=True)]
            if isinstance(self.process, Forked):  # its workers are children of the process that forks
                family += processes_since(self.process, WORKER[0])
            self._family |= {each.pid: each for each in family}


def metrics_of(text: str) -> dict[str, float]:
    """What GET /metrics answers, by name and the values of the labels but the model's name."""
    families = text_string_to_metric_families(text)
    return {_short(sample): sample.value for family in families for sample in family.samples}


def _short(sample: Sample) -> str:
    values = [value for label, value in sample.labels.items() if label != "model_name"]
    return " ".join([sample.name.removeprefix("numaserve_"), *values])


def completion(prompt: str | list[int], count: int, **more: Any) -> dict[str, Any]:
    """The body of a completion of exactly `count` tokens, greedy unless `more` says otherwise."""
    return {"prompt": prompt, "max_tokens": count, "temperature": 0, "ignore_eos": True, **more}


def shared_memory_of(pid: int) -> list[str]:
    """What a process has mapped from /dev/shm."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return [line for line in lines if "/dev/shm/" in line]
