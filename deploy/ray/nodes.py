"""The NUMA nodes of this host and their owners: a replica takes nodes that no other server has."""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path

RESOURCE = "numa_node"  # Ray resource; a host has one per NUMA node


class NoNodes(Exception):
    """The error of a host with too few free nodes."""


class Claim:
    """A claim on nodes, locked while one of `descriptors` is open in this process or in one that inherits them.

    The nodes are therefore free when the *server* has ended, not when its replica has. Another server on the same nodes
    would share their memory with a server that still drains. Ray's own resource count does not cover that.

    `socket` is the path at which the server listens, named after the first node. A killed server leaves at most this
    file, which the next server on the node replaces. A folder per server was rejected: killed servers would leave them.
    """

    def __init__(self, cores: list[int], socket: Path, descriptors: list[int]) -> None:
        self.cores = cores
        self.socket = socket
        self.descriptors = descriptors

    @classmethod
    def take(cls, count: int, folder: Path, locks: Path | None = None) -> Claim:
        """Lock the lowest `count` free nodes of `folder`. Raises `NoNodes`.

        `locks` is the folder of locks and sockets, which must belong to this user.
        """
        # A short path: socket paths have a limit.
        locks = locks or Path(tempfile.gettempdir()) / f"numaserve-nodes-{os.getuid()}"
        locks.mkdir(mode=0o700, exist_ok=True)
        if locks.stat().st_uid != os.getuid():
            raise NoNodes(f"{locks} belongs to another user: remove it, or set TMPDIR.")
        cores: list[int] = []
        names: list[str] = []
        held: list[int] = []
        for node in _nodes(folder):
            descriptor = os.open(locks / node.name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                continue
            held.append(descriptor)
            names.append(node.name)
            cores += cores_of(node)
            if len(held) == count:
                return cls(cores, locks / f"{names[0]}.sock", held)
        for descriptor in held:
            os.close(descriptor)
        raise NoNodes(f"The replica needs {count} NUMA nodes and {len(held)} are free.")

    def close(self) -> None:
        """Close the descriptors of this process."""
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = []


def cores_of(node: Path) -> list[int]:
    """Return the cores of a node that this process may use, from a list such as 0-3,8."""
    cores: set[int] = set()
    for part in filter(None, (node / "cpulist").read_text().strip().split(",")):
        first, _, last = part.partition("-")
        cores.update(range(int(first), int(last or first) + 1))
    return sorted(cores & os.sched_getaffinity(0))


def _nodes(folder: Path) -> list[Path]:
    """Return the nodes with cores that this process may use, in order."""
    nodes = [node for node in folder.glob("node[0-9]*") if cores_of(node)]
    return sorted(nodes, key=lambda node: int(node.name.removeprefix("node")))
