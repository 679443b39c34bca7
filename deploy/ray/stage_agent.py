"""The agent of a host as a Ray actor. Ray chooses the host; the server then speaks to the agent alone."""

from __future__ import annotations

import logging
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from numaserve.ray.launch import command_on
from numaserve.ray.nodes import Claim, NoNodes
from ray.util import get_node_ip_address

logger = logging.getLogger(__name__)

_START_S = 60.0  # in which an agent before this one ends
_AGAIN_S = 0.5


class AgentFailed(Exception):
    """The error of an agent that does not start."""


class Place(NamedTuple):
    """Where an agent listens, as HOST:PORT, and its public key."""

    address: str
    public_key: str


class StageAgent:
    """Runs `numaserve agent` on `nodes` NUMA nodes of this host, for the server with the public key `front_end`.

    When the agent ends, this process ends too, and Ray starts another one. If it is on the same host, it has the same
    `name`, key and port, and the server finds the agent again. Raises `AgentFailed`.
    """

    def __init__(self, name: str, front_end: str, nodes: int, command: Sequence[str], nodes_folder: str) -> None:
        self._command = command
        folder = Path(tempfile.gettempdir()) / f"numaserve-agent-{os.getuid()}-{name}"
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.stat().st_uid != os.getuid():
            raise AgentFailed(f"{folder} belongs to another user: remove it, or set TMPDIR.")
        (folder / "front-ends").write_text(f"{front_end}\n")
        if not (folder / "agent.key").exists():
            subprocess.run([*command, "agent", "--new-key", str(folder / "agent.key")], check=True)
        self._place = self._started(folder, nodes, Path(nodes_folder))
        threading.Thread(target=self._end_with_agent, daemon=True).start()

    def place(self) -> Place:
        """Return where the agent listens."""
        return self._place

    def _started(self, folder: Path, nodes: int, nodes_folder: Path) -> Place:
        deadline = time.monotonic() + _START_S
        while True:
            try:
                return self._start(folder, nodes, nodes_folder)
            except (NoNodes, AgentFailed) as error:
                if time.monotonic() > deadline:
                    raise AgentFailed(str(error)) from error
                time.sleep(_AGAIN_S)

    def _start(self, folder: Path, nodes: int, nodes_folder: Path) -> Place:
        known = folder / "address"
        listen = known.read_text() if known.exists() else f"{get_node_ip_address()}:0"
        keys = "--key-file", str(folder / "agent.key"), "--front-ends", str(folder / "front-ends")
        claim = Claim.take(nodes, nodes_folder)
        try:
            self._process = subprocess.Popen(
                command_on(claim.cores, [*self._command, "agent", "--listen", listen, *keys, "--rows-port", "0"]),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                text=True,
                pass_fds=claim.descriptors,
            )
        finally:
            claim.close()  # the agent has inherited the descriptors
        assert self._process.stdout is not None  # noqa: S101  # it is a pipe
        words = self._process.stdout.readline().split()  # the agent listens at HOST:PORT with the key KEY
        if not words:
            raise AgentFailed(f"The agent ended with status {self._process.wait()}. This actor's log has its output.")
        place = Place(words[4], words[-1])
        known.write_text(place.address)
        return place

    def _end_with_agent(self) -> None:
        logger.warning("the agent ended with status %s", self._process.wait())
        os._exit(1)
