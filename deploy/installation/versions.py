"""The versions below ``PREFIX/versions``, built side by side; one is current."""

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from deploy.installation.errors import InstallationError

CURRENT = "current"
DIGITS = 8  # of the digest that distinguishes builds of one version
UNITS = ("numaserve.service", "numaserve.socket")
_UNITS_OF_VERSION = Path("share/systemd")


def folder_of(prefix: Path, version: str) -> Path:
    """Return the folder of one version."""
    return prefix / "versions" / version


def name_of(wheel: Path, locks: Path) -> str:
    """Return the version of `wheel` with a digest of all that is installed, such as ``0.1.0-3f9a04c1``.

    The version alone was rejected: a rebuilt wheel, or newer locks, would replace files of a running server.
    """
    digest = hashlib.sha256()
    for file in (wheel, locks / "run.txt", locks / "demo.txt"):
        digest.update(file.read_bytes())
    return f"{wheel.name.split('-')[1]}-{digest.hexdigest()[:DIGITS]}"


def build(folder: Path, wheel: Path, locks: Path) -> None:
    """Make the empty `folder` a virtual environment with the packages of `locks` and `wheel`.

    Raises:
        InstallationError: A command failed, after printing its own errors.
    """
    _run([sys.executable, "-I", "-m", "venv", str(folder)])
    # With -I, because pip does not install packages that it finds in PYTHONPATH.
    for command in pip_commands(wheel, locks):
        _run([str(folder / "bin" / "python"), "-I", "-m", "pip", "--disable-pip-version-check", "-q", *command])


def pip_commands(wheel: Path, locks: Path) -> list[list[str]]:
    """Return the commands of pip, which fetches only packages that `locks` names with their hashes."""
    return [
        ["install", "--require-hashes", "-r", str(locks / "run.txt")],
        ["install", "--require-hashes", "-r", str(locks / "demo.txt"), "--no-deps"],
        ["install", "--no-deps", str(wheel)],
    ]


def keep_units(folder: Path, units: dict[str, str]) -> None:
    """Write `units`, texts by name, into the folder of a version, so that a rollback restores them too."""
    place = folder / _UNITS_OF_VERSION
    place.mkdir(parents=True)
    for name, text in units.items():
        (place / name).write_text(text)


def units_for(deploy: Path, prefix: Path, etc: Path) -> dict[str, str]:
    """Return the units of the folder `deploy` by name, with the paths of this installation."""
    places = {"/opt/numaserve": str(prefix), "/etc/numaserve": str(etc / "numaserve")}
    # In one pass, because a prefix may itself contain a replaced path.
    default = re.compile("|".join(places))
    return {name: default.sub(lambda found: places[found[0]], (deploy / name).read_text()) for name in UNITS}


def units_of(prefix: Path, version: str) -> dict[str, str]:
    """Return the units that a version was installed with, by name."""
    return {name: (folder_of(prefix, version) / _UNITS_OF_VERSION / name).read_text() for name in UNITS}


def current(prefix: Path) -> str | None:
    """Return the version that ``current`` names, or None."""
    link = prefix / CURRENT
    return link.readlink().name if link.is_symlink() else None


def point_current(prefix: Path, version: str) -> None:
    """Let ``current`` name `version`, atomically: a concurrent start of the service finds the old or new version."""
    made = prefix / f".{CURRENT}.new"
    made.unlink(missing_ok=True)
    made.symlink_to(Path("versions") / version)
    made.replace(prefix / CURRENT)


def files_below(folder: Path) -> list[str]:
    """Return files and symbolic links below `folder`, relative to it."""
    return sorted(str(path.relative_to(folder)) for path in _walk(folder))


def _walk(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        links = [name for name in folders if Path(place, name).is_symlink()]
        yield from (Path(place, name) for name in (*files, *links))


def _run(command: Sequence[str]) -> None:
    status = subprocess.run(command, check=False).returncode
    if status != 0:
        raise InstallationError(
            f"{' '.join(command)} ended with status {status}: correct the error that it "
            "printed, and run the command again"
        )
