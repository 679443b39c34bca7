"""The notes of a release, and tags that come too early."""

import pytest

from deploy.release_notes import ReleaseError, release_notes

CHANGELOG = """\
# Changelog

Versions follow rules.

## 0.10.0 (unreleased)

### Added

- Not yet.

## 0.2.0 (2026-12-01)

### Added

- A wheel, see `## 0.1.0`.

### Fixed

- A defect.

## 0.1.1 (2026-11-01)

### Added

## 0.1.0

The first version.
"""


def test_the_notes_are_the_section_of_the_version_and_no_other() -> None:
    assert release_notes(CHANGELOG, "0.2.0", "0.2.0") == (
        "### Added\n\n- A wheel, see `## 0.1.0`.\n\n### Fixed\n\n- A defect."
    )


@pytest.mark.parametrize(
    ("packaged", "version", "said"),
    [
        ("0.1.9", "0.2.0", "pyproject.toml has version 0.1.9, and the release is '0.2.0'"),
        ("0.2.0", "", "the release is ''"),
        ("0.1", "0.1", "no section '## 0.1'"),
        ("0.10.0", "0.10.0", r"no date for 0.10.0, but '\(unreleased\)'"),
        ("0.1.0", "0.1.0", "no date for 0.1.0, but ''"),
        ("0.1.1", "0.1.1", "says nothing of 0.1.1"),
    ],
)
def test_a_tag_that_comes_too_early_is_refused(packaged: str, version: str, said: str) -> None:
    with pytest.raises(ReleaseError, match=said):
        release_notes(CHANGELOG, packaged, version)
