"""Scheduler, speculation and costs stay pure: an import of a clock or a socket fails here."""

import ast
import sys
from pathlib import Path

import numaserve.server.scheduler
import pytest

IMPURE = {"asyncio", "time", "datetime", "random", "threading", "socket", "os", "subprocess"}
SERVER = Path(numaserve.server.scheduler.__path__[0]).parent
PURE = ("scheduler", "speculation", "costs")
INTERFACE = tuple(
    f"numaserve.workers.interface.{each}." for each in ("capacity", "protocol", "drafters", "windows", "step_lengths")
)
OWN = (*(f"numaserve.server.{each}." for each in PURE), *INTERFACE)
FILES = sorted(file for each in PURE for file in (SERVER / each).rglob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(SERVER)))
def test_a_pure_folder_imports_only_pure_folders_the_messages_and_pure_modules(file: Path) -> None:
    for node in ast.walk(ast.parse(file.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            top = name.partition(".")[0]
            assert f"{name}.".startswith(OWN) or (top in sys.stdlib_module_names and top not in IMPURE), name
