"""Unit tests need neither torch, nor transformers, nor native code."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
HEAVY = {"torch", "transformers", "numaserve.kernels", "numaserve.shm_comm"}


def pytest_collection_finish(session: pytest.Session) -> None:
    # What tests of other folders import in the same process is in sys.modules too, and says nothing.
    alone = session.items and all(FOLDER in item.path.parents for item in session.items)
    if alone and (imported := HEAVY & sys.modules.keys()):
        raise pytest.UsageError(f"tests/unit imports {', '.join(sorted(imported))}: see CONTRIBUTING.md")


@pytest.fixture(autouse=True)
def _is_pure() -> Iterator[None]:
    before = HEAVY & sys.modules.keys()
    yield
    assert HEAVY & sys.modules.keys() == before
