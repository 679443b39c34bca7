"""What CONTRIBUTING.md says of the folders of tests holds."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


# What is imported by another test in this process would show in sys.modules too.
@pytest.mark.parametrize("option", ["--collect-only", pytest.param("--strict-markers", marks=pytest.mark.slow)])
def test_unit_tests_import_neither_torch_nor_native_code(option: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", option, "tests/unit"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
