"""``python deploy/release_notes.py VERSION``: prints the changelog's section of the version that is released.

A tag that comes too early fails here, before anything is compiled: the package has another version, or the section is
missing, empty or without a date.
"""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


class ReleaseError(Exception):
    """A version that cannot be released; the message says what to change."""


def release_notes(changelog: str, packaged: str, version: str) -> str:
    """Return the section of `version` in `changelog`, without its heading. `packaged` is the version in pyproject.toml.

    Raises `ReleaseError`.
    """
    if version != packaged:
        raise ReleaseError(
            f"pyproject.toml has version {packaged}, and the release is {version!r}: set both to the same version"
        )
    heading, section = _section(changelog, version)
    if not re.fullmatch(r"\(\d{4}-\d{2}-\d{2}\)", heading):
        raise ReleaseError(
            f"CHANGELOG.md has no date for {version}, but {heading!r}: write '## {version} (YYYY-MM-DD)' before the tag"
        )
    if not any(line and not line.startswith("#") for line in section.splitlines()):
        raise ReleaseError(f"CHANGELOG.md says nothing of {version}: write its section before the tag")
    return section


def _section(changelog: str, version: str) -> tuple[str, str]:
    """Return the rest of the heading after `version`, and the text up to the next version."""
    for section in re.split(r"^## ", changelog, flags=re.M)[1:]:
        heading, _, text = section.partition("\n")
        name, _, rest = heading.partition(" ")
        if name == version:
            return rest.strip(), text.strip()
    raise ReleaseError(f"CHANGELOG.md has no section '## {version}': write it before the tag")


def main(version: str) -> int:
    """Print the notes of `version`. Returns the exit status."""
    packaged = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    try:
        print(release_notes((ROOT / "CHANGELOG.md").read_text(), packaged, version))
    except ReleaseError as error:
        print(f"release-notes: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
