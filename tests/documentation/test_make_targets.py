"""The Makefile describes its targets; `make help` and CONTRIBUTING.md show the descriptions."""

import subprocess

from tests.documentation.parts import ROOT
from tests.documentation.targets import by_audience


def make(*words: str) -> list[str]:
    command = ("make", "-C", str(ROOT), *words)
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def test_each_target_has_an_audience_and_a_description() -> None:
    audiences = by_audience()
    assert [audience for audience in audiences if not audience.startswith("People who ")] == []
    assert [name for targets in audiences.values() for name, text in targets.items() if not text] == []


def test_help_lists_each_target_once() -> None:
    shown = [line.split()[1] for line in make("help") if line.startswith("  make ")]
    assert sorted(shown) == sorted(name for targets in by_audience().values() for name in targets)


def test_a_target_runs_where_a_folder_has_its_name() -> None:
    assert (ROOT / "docs").is_dir()
    assert any("tests.documentation" in line for line in make("-n", "docs"))
