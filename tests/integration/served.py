"""What tests ask of the serve command's process."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.support.forked import Forked

LAUNCHER = Path(__file__).with_name("launch_activated.py")
Process = subprocess.Popen[str] | Forked
Serve = Callable[..., Process]


def announced_url(process: Process) -> str:
    """Wait for the line that ends the start."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert " is served at " in line
    return line.split(" is served at ")[1].split()[0]


def activated(descriptors: Sequence[int]) -> list[str]:
    """What stands before a command that gets these sockets as from systemd; nothing when there are none."""
    return [sys.executable, str(LAUNCHER), *map(str, descriptors), "--"] if descriptors else []


def completion(count: int, **more: object) -> dict[str, object]:
    return {"model": "tiny-model", "prompt": [11, 12, 13], "max_tokens": count, "ignore_eos": True, **more}
