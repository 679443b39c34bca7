"""The manifest of an installation: the files that it has written and may therefore remove."""

import json
import os
import stat
from dataclasses import asdict, dataclass, field
from pathlib import Path

from deploy.installation.errors import InstallationError

NAME = "manifest.json"
_PROGRAM = "numaserve"
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


@dataclass
class Manifest:
    """The files that an installation owns. Written first, so that an interrupted installation is known."""

    etc: str  # absolute, as `var`: folders of units and configuration, and of the service's state
    var: str
    versions: dict[str, list[str] | None] = field(default_factory=dict)  # files of each version; None: unfinished
    previous: str | None = None  # current before the present version
    directories: list[str] = field(default_factory=list)  # created by the installation, removed when empty
    units: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)  # configuration, models and caches: removed only by a purge


def read_manifest(prefix: Path) -> Manifest | None:
    """Return the manifest below `prefix`, or None if there is none.

    Raises:
        InstallationError: Another user could have written it, or it is not a manifest.
    """
    file = prefix / NAME
    try:
        text = file.read_text()
    except (FileNotFoundError, NotADirectoryError):
        return None
    for path in (prefix, file):
        status = path.stat()
        if status.st_uid not in (0, os.geteuid()) or status.st_mode & _WRITABLE_BY_OTHERS:
            raise InstallationError(
                f"{path} belongs to user {status.st_uid} with mode {stat.S_IMODE(status.st_mode):o}. It must be "
                "writable only by root or the user who runs this command: use chown and chmod, or another PREFIX"
            )
    try:
        found = json.loads(text)
        if found.pop("program") == _PROGRAM:
            return Manifest(**found)
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    raise InstallationError(f"{file} is not the manifest of an installation of {_PROGRAM}: use another PREFIX")


def write_manifest(prefix: Path, manifest: Manifest) -> None:
    """Replace the manifest below `prefix` atomically."""
    replace_file(prefix / NAME, json.dumps({"program": _PROGRAM} | asdict(manifest), indent=1) + "\n")


def replace_file(path: Path, text: str) -> None:
    """Write `path` so that readers see the old or the new text, even after a power failure."""
    written = path.with_name(f".{path.name}.new")
    with written.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    written.replace(path)
