"""The number of costly things that a run of the tests starts: rank groups, servers, checkpoints.

Their number is a budget. `make test` fails when a run starts more than `launches.json` allows; a commit that needs more
raises the number there, and says why.
"""

import json
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

Kind = Literal["rank groups", "servers", "checkpoints"]
_BUDGET = Path(__file__).parents[1] / "launches.json"
_COUNTED = "NUMASERVE_TEST_LAUNCHES"  # names the file that all processes of the run append to


def start_counting(path: Path) -> None:
    """Have this process and its children count in an empty file."""
    path.write_text("")
    os.environ[_COUNTED] = str(path)


def stop_counting() -> None:
    """Count nothing more in this process and its children: what a server starts counts with the server."""
    os.environ.pop(_COUNTED, None)


def count(kind: Kind) -> None:
    """Count one, if the launches of this run are counted."""
    if path := os.environ.get(_COUNTED):
        with Path(path).open("a") as file:  # lines this short are appended whole
            file.write(f"{kind}\n")


def counted() -> Mapping[str, int]:
    """Return the numbers so far, by kind."""
    numbers = Counter(Path(os.environ[_COUNTED]).read_text().splitlines())
    return {kind: numbers[kind] for kind in budget()}


def budget() -> Mapping[str, int]:
    """Return the numbers that a run of `make test` may launch, by kind."""
    numbers: dict[str, int] = json.loads(_BUDGET.read_text())
    return numbers


def beyond(numbers: Mapping[str, int], most: Mapping[str, int]) -> list[str]:
    """Return a sentence for each kind of which there were more than the budget allows."""
    return [
        f"launched {numbers[kind]} {kind}: the budget is {limit}. Launch fewer, or raise it in tests/launches.json"
        for kind, limit in most.items()
        if numbers[kind] > limit
    ]
