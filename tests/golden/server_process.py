"""A server of the tree under test: its command, its folder, and its KV events."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.golden.cases import Served
from tests.golden.event_frames import EventFrames

_PATIENCE_S = 120
_KEPT = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "VIRTUAL_ENV")


def environment_of(root: Path, folder: Path, bytecode: Path) -> dict[str, str]:
    """Return the environment of a process that imports the tree at `root` and writes into `folder` alone, and into
    `bytecode`, which processes share: to compile the modules takes most of the time of a start."""
    kept = {key: os.environ[key] for key in _KEPT if key in os.environ}
    paths = [str(root), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return kept | {
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONPYCACHEPREFIX": str(bytecode),
        "TMPDIR": str(folder),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "SSL_CERT_DIR": str(folder),  # a client that is made reads no certificates
        "COLUMNS": "100",
        "NO_COLOR": "1",
        "OMP_NUM_THREADS": "1",
    }


class ServerProcess:
    """A running server. Its folder, which is its temporary directory too, is removed at the end."""

    def __init__(self, served: Served, root: Path, models: Path, bytecode: Path, cpus: set[int]) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ng-"))  # short: socket paths have a limit
        self.frames: EventFrames | None = None
        self._models = models
        self._log = self.folder / "log"
        for name, text in served.files.items():
            (self.folder / name).write_text(text.replace("{models}", str(models)))
            (self.folder / name).chmod(0o600)
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [*_under(cpus), *self._command(served)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=self.folder,
                env=environment_of(root, self.folder, bytecode),
            )
        try:
            assert self._process.stdout is not None
            line = self._process.stdout.readline()
            if " is served at " not in line:
                raise RuntimeError(f"{served.name}: the server did not start.\n{self._log.read_text()}")
            self.url = line.partition(" is served at ")[2].split()[0]
            if served.events:
                self.frames = EventFrames(*self._endpoints())
        except BaseException:
            self.close()
            raise

    def _endpoints(self) -> tuple[str, str]:
        return f"ipc://{self.folder}/events", f"ipc://{self.folder}/again"

    def _command(self, served: Served) -> list[str]:
        module = [sys.executable, "-m", "numaserve.server.cli.main", "serve", "--port", "0"]
        options = [each.format(folder=self.folder, models=self._models) for each in served.options]
        if served.events:
            events, again = self._endpoints()
            options += ["--kv-events", events, "--kv-events-replay", again, "--kv-events-topic", "kv@golden"]
        if not served.model:
            return [*module, *options]
        model = "demo" if served.model == "demo" else str(self._models / served.model)
        fixed = ["--weights-cache-gib", "0", "--kv-cache-gib", "0.03", "--threads-per-worker", "1"]
        named = [] if "--served-model-name" in served.options else ["--served-model-name", "golden"]
        return [*module, model, *fixed, "--generation-config", "none", *named, *options]

    def close(self) -> None:
        """End the server, whatever its state is, and remove its folder."""
        if self.frames is not None:
            self.frames.close()
        if self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_PATIENCE_S)
            self._process.kill()
        self._process.communicate()
        shutil.rmtree(self.folder)

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _under(cpus: set[int]) -> list[str]:
    """Return the beginning of a command that runs on `cpus` alone."""
    return ["taskset", "-c", ",".join(map(str, sorted(cpus)))]
