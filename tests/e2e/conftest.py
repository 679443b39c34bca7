"""Servers and workers that are forked from processes which have imported what they need."""

from collections.abc import Iterator

import pytest
from numaserve.server.costs.cost_model import CostModel

from tests.support.forked import members_and_workers_forked, prepare

# What a server imports until its first request. It executes its workers and helpers, as it does for a user.
SERVER = (
    "numaserve.server.cli.main",
    *("numaserve.server.service.service", "numaserve.server.service.http", "numaserve.server.structured.grammars"),
)


@pytest.fixture(autouse=True, scope="session")
def _cheap_processes() -> Iterator[None]:
    prepare(SERVER)
    prepare(["numaserve.workers.process.main"])
    with members_and_workers_forked():
        yield


@pytest.fixture
def drafts_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verify a few draft tokens in each step, whether they pay or not."""
    monkeypatch.setattr(CostModel, "describe", lambda *_: None)
