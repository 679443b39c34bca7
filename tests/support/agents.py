"""An agent as an operator runs it, on this host: a process of its own, with keys and a hosts file for a server."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from numaserve.server.common.key_files import write_key_file
from numaserve.workers.interface.host_links import Address, KeyPair, parse_address

from tests.support.forked import forked_or_executed
from tests.support.relay import ANY_PORT


class RunningAgent:
    """A running agent. Its files are in `folder`, which is its own; its ranks have ports from `rows_port` on."""

    def __init__(self, folder: Path, address: Address = ANY_PORT, rows_port: int = 0) -> None:
        self.folder = folder
        self._rows_port = rows_port
        self.keys: KeyPair = write_key_file(folder / "agent.key")
        self.front_end: KeyPair = write_key_file(folder / "front-end.key")
        self.allowed = folder / "front-ends"
        self.allowed.write_text(f"{self.front_end.public}  # of the test\n")
        self.log = folder / "agent.log"
        self.address = address
        self._sockets = tempfile.mkdtemp(prefix="ns-")  # short: socket paths have a limit
        self.start()

    def start(self) -> None:
        """Start the process; after the first time at the same port."""
        options = ["--listen", str(self.address), "--key-file", str(self.folder / "agent.key")]
        options += ["--rows-port", str(self._rows_port), "--front-ends", str(self.allowed), "--weights-cache-gib", "0"]
        own = {"XDG_CACHE_HOME": str(self.folder / "cache"), "TMPDIR": self._sockets}
        with self.log.open("a") as log:
            self.process: Any = forked_or_executed(
                [sys.executable, "-m", "numaserve.server.cli.main", "agent", *options],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=os.environ | own,
            )
        line = self.process.stdout.readline()
        assert line.startswith("the agent listens at "), self.log.read_text()
        self.address = parse_address(line.split()[4])

    @property
    def stage(self) -> str:
        """The stage at this agent, in the form of the hosts file."""
        return self.stage_at(self.address)

    def stage_at(self, address: Address) -> str:
        """The same at the address of a relay."""
        return f"{{agent: '{address}', public-key: {self.keys.public}}}"

    def hosts_file(self, *stages: str) -> Path:
        """Write a hosts file with these stages, and with the key of this agent's front end."""
        file = self.folder / "hosts.yaml"
        file.write_text(f"key-file: {self.folder / 'front-end.key'}\nstages: [{', '.join(stages)}]\n")
        return file

    def kill(self) -> None:
        """End the process at once."""
        self.process.kill()
        self.process.communicate()

    def close(self) -> None:
        """End the process, which ends its workers."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.terminate()
            self.process.wait(10)
        self.kill()
        shutil.rmtree(self._sockets, ignore_errors=True)

    def __enter__(self) -> RunningAgent:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
