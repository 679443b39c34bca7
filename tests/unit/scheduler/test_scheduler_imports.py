"""The scheduler stays pure: whoever adds a clock or a socket to it finds out here."""

import ast
import sys
from pathlib import Path

import numaserve.server.scheduler
import pytest

IMPURE = {"asyncio", "time", "datetime", "random", "threading", "socket", "os", "subprocess"}
OWN = ("numaserve.server.scheduler.", "numaserve.workers.interface.protocol")


@pytest.mark.parametrize(
    "file", sorted(Path(numaserve.server.scheduler.__path__[0]).glob("*.py")), ids=lambda f: f.name
)
def test_the_scheduler_imports_only_itself_the_messages_and_pure_modules(file: Path) -> None:
    for node in ast.walk(ast.parse(file.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            top = name.partition(".")[0]
            assert name.startswith(OWN) or (top in sys.stdlib_module_names and top not in IMPURE), name
