"""The virtual machine: two uneven NUMA nodes without a network."""

import json
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.vm.acceleration import OPTIONS, Kind
from tests.vm.image import Base

# Cores and MiB of each node.
NODES = ((3, 2560), (2, 1536))
SILENT_SECONDS = 2 * 3600.0  # of the slowest check without KVM, with room
_COMMAND = ("qemu-system-x86_64", "-no-user-config", "-nodefaults", "-display", "none", "-nic", "none")


@dataclass(frozen=True)
class Outcome:
    """What the machine tells of a check. `told` is a figure, or why it failed."""

    name: str
    passed: bool
    seconds: float
    told: str
    is_last: bool


def run_machine(base: Base, payload: Path, accel: Kind) -> Iterator[Outcome]:
    """Boot from `base`, which is not changed, and tell each check's outcome as it comes."""
    # Not in the temporary folder that qemu would take, which may lie in memory.
    with tempfile.TemporaryDirectory(dir=base.console.parent) as scratch:
        process = subprocess.Popen(
            [*_COMMAND, *OPTIONS[accel], *_hardware(base, payload)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            env={"PATH": "/usr/bin:/bin", "TMPDIR": scratch},
        )
        assert process.stdout is not None
        try:
            while line := _line_of(process):
                yield Outcome(**json.loads(line))
        finally:
            process.kill()
            process.wait()


def _line_of(process: subprocess.Popen[str]) -> str:
    """The next line, or nothing when the machine has ended or was silent for too long."""
    assert process.stdout is not None
    deadline = threading.Timer(SILENT_SECONDS, process.kill)
    deadline.start()
    try:
        return process.stdout.readline()
    finally:
        deadline.cancel()


def _hardware(base: Base, payload: Path) -> list[str]:
    words = ["-m", str(sum(memory for _, memory in NODES)), "-smp", str(sum(cores for cores, _ in NODES))]
    first = 0
    for number, (cores, memory) in enumerate(NODES):
        words += ["-object", f"memory-backend-ram,id=memory{number},size={memory}M"]
        words += ["-numa", f"node,nodeid={number},cpus={first}-{first + cores - 1},memdev=memory{number}"]
        first += cores
    words += ["-kernel", str(base.kernel), "-initrd", str(base.initrd)]
    words += ["-append", "root=/dev/vda rw console=ttyS0 systemd.show_status=no"]
    words += ["-drive", f"file={base.disk},format=raw,if=virtio,snapshot=on"]
    words += ["-drive", f"file={payload},format=raw,if=virtio,readonly=on"]
    words += ["-chardev", f"file,id=console,path={base.console}", "-serial", "chardev:console"]
    return [*words, "-chardev", "stdio,id=results,signal=off", "-serial", "chardev:results"]
