"""Servers and workers that are forked from processes which have imported what they need."""

import pytest

from tests.support.forked import fork_members_and_workers, prepare

# What a server imports until its first request. It executes its workers and helpers, as it does for a user.
SERVER = (
    "numaserve.server.cli.main",
    *("numaserve.server.service.service", "numaserve.server.service.http", "numaserve.server.structured.grammars"),
)


@pytest.fixture(autouse=True, scope="session")
def _cheap_processes() -> None:
    prepare(SERVER)
    prepare(["numaserve.workers.process.main"])
    fork_members_and_workers()
