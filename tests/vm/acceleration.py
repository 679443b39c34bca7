"""Whether the virtual machine has KVM, or its processors are emulated."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

Kind = Literal["kvm", "tcg"]
DEVICE = Path("/dev/kvm")
OPTIONS = {"kvm": ("-accel", "kvm", "-cpu", "host"), "tcg": ("-accel", "tcg,thread=multi", "-cpu", "max")}
# A machine with nothing but what the kernel needs to say that it has booted: that it finds no disk.
_PROBE = ("-no-user-config", "-nodefaults", "-display", "none", "-nic", "none", "-m", "512", "-serial", "stdio")
_ARGUMENTS = "console=ttyS0 panic=-1 root=none"
_SAID = b"Kernel panic - not syncing: VFS"
_SECONDS = 30.0
_SHOWN = 300  # characters of what qemu says


class Acceleration(NamedTuple):
    """What the machine is run with, and why, in words that go behind a colon."""

    kind: Kind
    why: str


def acceleration(kernel: Path, device: Path = DEVICE, qemu: str = "qemu-system-x86_64") -> Acceleration:
    """``kvm`` where `kernel` boots with it, else ``tcg``.

    That the device opens says little: a host whose processor does not virtualize may have it all the same, from a
    module that interprets what a kernel does that was not built for that (PVM). Such a kernel is still unpacking itself
    when the time is over.
    """
    try:
        os.close(os.open(device, os.O_RDWR))
    except OSError as error:
        return Acceleration("tcg", f"{device} cannot be opened, {error.strerror}")
    return _booted([qemu, *OPTIONS["kvm"], *_PROBE, "-kernel", str(kernel), "-append", _ARGUMENTS, "-no-reboot"])


def _booted(command: Sequence[str]) -> Acceleration:
    try:
        done = subprocess.run(command, check=False, capture_output=True, stdin=subprocess.DEVNULL, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        return Acceleration("tcg", f"no kernel has booted with KVM within {_SECONDS:g} s")
    if done.returncode == 0 and _SAID in done.stdout:
        return Acceleration("kvm", "a kernel has booted with it")
    said = "; ".join(done.stderr.decode(errors="replace").splitlines())[:_SHOWN] or "it said nothing"
    return Acceleration("tcg", f"no kernel boots with KVM, qemu ended with {done.returncode}: {said}")
