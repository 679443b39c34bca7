"""Servers and workers that are forked from processes which have imported what they need, and their instruction sets."""

from collections.abc import Iterator

import pytest
from numaserve.kernels import _native
from numaserve.server.costs.cost_model import CostModel

from tests.support.forked import members_and_workers_forked, prepare
from tests.support.imported import SERVER, WORKER

_PROGRAMS = ("numaserve.server.cli.main", "numaserve.server.gateway.models.process_main")


@pytest.fixture(autouse=True, scope="session")
def _cheap_processes() -> Iterator[None]:
    # One process for both: a server asks the process that forked it for its workers.
    prepare([*_PROGRAMS, *SERVER, *WORKER])
    with members_and_workers_forked():
        yield


def _instruction_sets() -> list[object]:
    names = _native.available_isas()
    return [
        pytest.param(name, marks=pytest.mark.amx if name == "amx" else ())
        for name in names
        if name != "amx_emulated" or "amx" not in names
    ]


@pytest.fixture(scope="module", params=_instruction_sets())
def isa(request: pytest.FixtureRequest) -> str:
    """Return each instruction set that the machine can run. Tiles are emulated where it has none: tests/kernels shows
    that an emulated product is the real one."""
    return request.param


@pytest.fixture(scope="module", params=[1, 2])
def tp(request: pytest.FixtureRequest) -> int:
    """Return a number of ranks."""
    return request.param


@pytest.fixture
def drafts_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verify a few draft tokens in each step, whether they pay or not."""
    monkeypatch.setattr(CostModel, "describe", lambda *_: None)
