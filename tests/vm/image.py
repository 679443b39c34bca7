"""Disks of the virtual machine: Debian with systemd, and what is installed on it."""

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tests.support.tiny_model import write_folder

ROOT = Path(__file__).resolve().parents[2]
# The wheels are of the Python that runs this: the machine has to have the same.
SUITES = {(3, 11): "bookworm", (3, 13): "trixie"}
PACKAGES = (
    *("linux-image-cloud-amd64", "initramfs-tools", "systemd-sysv", "udev", "kmod"),
    *("python3", "python3-venv", "make", "prometheus"),
)
_TINY_VOCABULARY = 100_000  # so that each rank has megabytes of weights
_BASE_SIZE = "4G"  # sparse: what is not used takes no space
_UNIT = """\
[Unit]
After=network.target

[Service]
ExecStart=sh -c 'mount -o ro LABEL=payload /mnt && cd /mnt/tree && exec python3 -m tests.vm.guest'
StandardOutput=journal+console
TimeoutStartSec=infinity
"""

_INSTALL = """
mount -o loop "$2" "$1"
mount -o loop,ro "$3" "$1/mnt"
mount --bind /dev "$1/dev"
mount -t proc proc "$1/proc"
exec chroot "$1" sh -c 'cd /mnt/tree && exec python3 -m tests.vm.guest.installation'
"""


@dataclass(frozen=True)
class Base:
    """The system's disk, and what boots it."""

    disk: Path
    kernel: Path
    initrd: Path
    console: Path  # where a machine writes what its console shows


def make_base(folder: Path, mirror: str) -> Base:
    """Install Debian to a disk, unless there is one of the same suite and packages."""
    suite = SUITES.get(sys.version_info[:2])
    if suite is None:
        known = ", ".join(f"{major}.{minor}" for major, minor in SUITES)
        raise SystemExit(f"the wheel must be of a Python that Debian has, {known}: make vm-test PYTHON=python3.11")
    name = hashlib.sha256(repr((suite, PACKAGES, _UNIT)).encode()).hexdigest()[:12]
    made = folder / name
    base = Base(made / "disk", made / "vmlinuz", made / "initrd", folder / "console.log")
    if made.exists():
        return base
    print(f"=== Debian {suite} is installed to {base.disk}", flush=True)
    tree, being_made = folder / "tree", folder / "being-made"
    for old in (tree, being_made):
        shutil.rmtree(old, ignore_errors=True)
    being_made.mkdir(parents=True)
    packages = ",".join(PACKAGES)
    _run("mmdebstrap", "-q", "--variant=minbase", f"--include={packages}", suite, str(tree), mirror)
    shutil.copy(tree / "vmlinuz", being_made / "vmlinuz")
    shutil.copy(tree / "initrd.img", being_made / "initrd")
    units = tree / "etc/systemd/system"
    (units / "checks.service").write_text(_UNIT)
    (units / "multi-user.target.wants" / "checks.service").symlink_to("/etc/systemd/system/checks.service")
    (units / "prometheus.service").symlink_to("/dev/null")  # started where it is checked, and not before
    _run("mke2fs", "-q", "-t", "ext4", "-d", str(tree), str(being_made / "disk"), _BASE_SIZE)
    shutil.rmtree(tree)
    being_made.rename(made)
    return base


def make_payload(folder: Path, wheel: Path, checks: Sequence[str], *, tiny: bool) -> Path:
    """A disk with the sources, the wheel, the packages that the service is made of, and the checks' names.

    It has a `tiny` model, of one layer, where that is wanted instead of the demo.
    """
    wheels, tree, disk = folder / "wheels", folder / "payload", folder / "payload.disk"
    _fetch(wheels)
    shutil.rmtree(tree, ignore_errors=True)
    shutil.copytree(wheels, tree / "wheels")
    shutil.copy(wheel, tree)
    for file in _run("git", "-C", str(ROOT), "ls-files").splitlines():
        if (ROOT / file).is_file():
            (tree / "tree" / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, tree / "tree" / file)
    (tree / "checks").write_text("\n".join(checks))
    if tiny:
        _fill(write_folder(tree / "model", _TINY_VOCABULARY) / "model.safetensors")
    disk.unlink(missing_ok=True)
    size = sum(file.stat().st_size for file in tree.rglob("*") if file.is_file()) // (1 << 20)
    _run("mke2fs", "-q", "-t", "ext4", "-L", "payload", "-d", str(tree), str(disk), f"{2 * size + 64}M")
    shutil.rmtree(tree)
    return disk


def install(folder: Path, base: Base, payload: Path) -> Base:
    """The system with the service on it, installed by this machine's processors: emulated ones take a hundred times as
    long, for what is not looked at.

    It has no network there, and only its own files.
    """
    disk, root = folder / "installed", folder / "root"
    _run("cp", "--sparse=always", str(base.disk), str(disk))
    root.mkdir(exist_ok=True)
    # Of a mount namespace of its own: with its last process all is taken away again.
    print(_run("unshare", "--mount", "--net", "sh", "-ec", _INSTALL, "sh", str(root), str(disk), str(payload)), end="")
    return replace(base, disk=disk)


def _fill(weights: Path) -> None:
    """Put random numbers for the zeros, with which every token would be as likely as any other after every prompt."""
    header = 8 + int.from_bytes(weights.open("rb").read(8), "little")
    count = (weights.stat().st_size - header) // 2
    numbers = np.random.default_rng(1).standard_normal(count, np.float32)
    with weights.open("r+b") as file:
        file.seek(header)
        file.write((numbers.view(np.uint32) >> 16).astype("<u2").tobytes())


def _fetch(wheels: Path) -> None:
    """The packages that `make install-service` installs: the machine has no network."""
    locks = ROOT / "deploy" / "locks"
    wanted = "".join((locks / name).read_text() for name in ("run.txt", "demo.txt"))
    stamp = wheels / "locks.txt"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    shutil.rmtree(wheels, ignore_errors=True)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "download", "-d", str(wheels))
    _run(*pip, "--require-hashes", "-r", str(locks / "run.txt"))
    _run(*pip, "--require-hashes", "--no-deps", "-r", str(locks / "demo.txt"))
    _run(*pip, "setuptools", "wheel")  # a package of them comes as its sources
    stamp.write_text(wanted)


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
