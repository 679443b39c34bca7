"""What CONTRIBUTING.md says of the folders of tests holds."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


# Collects without what takes half of the time and imports nothing more: plugins, and asserts that are rewritten.
COLLECT = ("--collect-only", "--assert=plain", "-p", "pytest_timeout")


# What is imported by another test in this process would show in sys.modules too.
@pytest.mark.parametrize(
    ("options", "plugins"),
    [
        pytest.param(COLLECT, {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}, id="--collect-only"),
        pytest.param(("--strict-markers",), {}, id="--strict-markers", marks=pytest.mark.slow),
    ],
)
def test_unit_tests_import_neither_torch_nor_native_code(options: tuple[str, ...], plugins: dict[str, str]) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", *options, "tests/unit"]
    environment = os.environ | plugins
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
