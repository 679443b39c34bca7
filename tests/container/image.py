"""Containers of the image, run by podman as an operator would run them."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.clients.scripts.processes import free_port

PODMAN = shutil.which("podman") or "podman"
PODMAN_PROFILE = Path("/usr/share/containers/seccomp.json")


@dataclass(frozen=True)
class Image:
    """An image, and the OCI runtime that runs it."""

    name: str
    runtime: str

    def size(self) -> int:
        """Bytes."""
        return int(podman("image", "inspect", "--format", "{{.Size}}", self.name))

    @contextmanager
    def running(
        self, *options: str, serve: Sequence[str], log: Path, profile: Path = PODMAN_PROFILE
    ) -> Iterator[Container]:
        """A container that has been started with `options` of podman and arguments of the server; gone afterwards.

        Its root is read-only, it has no capabilities, and a seccomp profile filters what it calls.
        """
        port = free_port()
        name = f"numaserve-test-{port}"
        command = (
            *(PODMAN, "--runtime", self.runtime, "run", "--rm", "--name", name, "--network=host", "--read-only"),
            *(
                "--ulimit",
                "nofile=4096:4096",
                "--ulimit",
                "nproc=1000:1000",
            ),  # podman's own may be more than is allowed
            *("--cap-drop=all", "--security-opt=no-new-privileges", "--security-opt", f"seccomp={profile}"),
            *("--tmpfs", "/tmp:size=64m", *options, self.name),
            *("serve", *serve, "--host", "127.0.0.1", "--port", str(port)),
        )
        with log.open("wb") as written:
            process = subprocess.Popen(command, stdout=written, stderr=written)
        try:
            yield Container(name, f"http://127.0.0.1:{port}", process, log)
        finally:
            process.terminate()
            process.wait(60)


@dataclass(frozen=True)
class Container:
    """One that runs, with podman's process, which ends with it."""

    name: str
    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def status(self, path: str) -> int | None:
        """What GET of a path answers; None where nobody listens."""
        try:
            return httpx.get(f"{self.url}{path}").status_code
        except httpx.TransportError:
            return None

    def until_ready(self) -> None:
        """Return when GET /readyz answers 200."""
        while self.status("/readyz") != 200:
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.2)

    def terminate(self) -> None:
        """SIGTERM to the server, as Kubernetes ends a pod."""
        podman("kill", "--signal", "TERM", self.name)

    def can_write(self, path: str) -> bool:
        """Whether a file can be made in the container."""
        touched = subprocess.run((PODMAN, "exec", self.name, "touch", path), check=False, capture_output=True)
        return touched.returncode == 0


def podman(*words: str) -> str:
    """What podman answers. Raises `CalledProcessError`."""
    return subprocess.run((PODMAN, *words), check=True, capture_output=True, text=True).stdout.strip()
