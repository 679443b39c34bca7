"""The installed version, and the commit of its build."""

import importlib.metadata
from pathlib import Path

UNKNOWN = "unknown"
# Written by record_commit.cmake while the package is built.
_COMMIT = Path(__file__).parents[1] / "commit.txt"


def installed_version() -> str:
    """Return the version of the installed distribution."""
    try:
        return importlib.metadata.version("numaserve")
    except importlib.metadata.PackageNotFoundError:  # a source tree on the path
        return "0+source"


def built_commit(path: Path = _COMMIT) -> str:
    """Return the commit that the package was built from, or `unknown` for a build outside a git checkout.

    A build of changed files has the commit's id with the suffix `-dirty`.
    """
    try:
        return path.read_text(encoding="ascii").strip() or UNKNOWN
    except (OSError, UnicodeDecodeError):
        return UNKNOWN
