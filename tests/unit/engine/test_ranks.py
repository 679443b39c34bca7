"""The reports of ranks, as /server_info and the metrics show them."""

import pytest
from msgspec.structs import replace
from numaserve.server.engine.views.ranks import Ranks
from numaserve.server.metrics.metrics import Metrics
from numaserve.workers.interface.protocol import Ready
from numaserve.workers.planning.deployment import make_deployment

from tests.support.configured import configured
from tests.support.machines import OPTIONS, machine

READY = Ready(0, "avx512", rss_bytes=1, weight_bytes=2, kv_bytes=3, misplaced_pages=0)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics("m")


@pytest.fixture
def ranks(metrics: Metrics) -> Ranks:
    return Ranks(make_deployment(OPTIONS, configured(), machine(4)).launches, metrics)


def shown_bytes(metrics: Metrics) -> float | None:
    return metrics.registry.get_sample_value("numaserve_worker_state_bytes", {"rank": "0", "model_name": "m"})


def test_recurrent_states_are_reported_of_ranks_that_have_some(ranks: Ranks, metrics: Metrics) -> None:
    ranks.describe(READY)
    assert "state_bytes" not in ranks.info([7])[0]
    assert shown_bytes(metrics) == 0
    ranks.describe(replace(READY, state_bytes=5))
    (info,) = ranks.info([7])
    assert (info["pid"], info["weight_bytes"], info["kv_bytes"], info["state_bytes"]) == (7, 2, 3, 5)
    assert shown_bytes(metrics) == 5
