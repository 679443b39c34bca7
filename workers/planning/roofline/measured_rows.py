"""The rows that ``numaserve bench kernels --json`` writes. A server reads them at its start."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def read_rows(path: Path) -> list[Mapping[str, Any]]:
    """Return the rows of a file that `numaserve bench kernels --json` wrote. Raises `OSError` and `ValueError`."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise ValueError("no measurements")
    return rows
