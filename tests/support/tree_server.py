"""A server of a tree: the commit under test or an earlier one, by its import root."""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self

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


class TreeServer:
    """A running server of the tree at `root`. `folder`, which is its temporary directory too, is removed at the end."""

    def __init__(
        self,
        root: Path,
        folder: Path,
        options: Sequence[str],
        *,
        bytecode: Path | None = None,
        cpus: Sequence[int] = (),
    ) -> None:
        """Start the server and wait for its address. Raises RuntimeError with its log if it ends before.

        Args:
            root: import root of the tree, see `tests.support.trees`.
            folder: an existing folder with a short path, since socket paths have a limit.
            options: arguments of `numaserve serve`, except `--port`.
            bytecode: folder of compiled modules that several processes share; None for `folder`.
            cpus: processors that the server may use; empty for all.

        """
        self.folder = folder
        log = folder / "log"
        under = ["taskset", "-c", ",".join(map(str, cpus))] if cpus else []
        serve = [sys.executable, "-m", "numaserve.server.cli.main", "serve", "--port", "0"]
        with log.open("w") as file:
            self.process = subprocess.Popen(
                [*under, *serve, *options],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                cwd=folder,
                env=environment_of(root, folder, bytecode or folder),
            )
        try:
            assert self.process.stdout is not None
            line = self.process.stdout.readline()
            if " is served at " not in line:
                raise RuntimeError(f"the server of {root} did not start.\n{log.read_text()}")
            self.url = line.partition(" is served at ")[2].split()[0]
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the server, whatever its state is, and remove its folder."""
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_PATIENCE_S)
        self.process.kill()
        self.process.communicate()
        shutil.rmtree(self.folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
