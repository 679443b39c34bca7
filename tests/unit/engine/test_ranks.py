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


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ranks(metrics: Metrics, clock: Clock) -> Ranks:
    return Ranks(make_deployment(OPTIONS, configured(), machine(4)).launches, metrics, clock, ())


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


def late(ranks: Ranks, clock: Clock, seconds: float, *waited: float) -> None:
    """Note that much of looks a quarter of a second apart, in each of which the ranks wait for these shares."""
    for _ in range(round(seconds / 0.25)):
        clock.now += 0.25
        ranks.starved({rank: 0.25 * share for rank, share in enumerate(waited)}, 0.25)


def is_starved(ranks: Ranks) -> bool:
    (state,) = ranks.states()
    return state.starved


def test_a_starved_rank_is_counted_and_logged_once_a_minute(
    ranks: Ranks, metrics: Metrics, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    ranks.describe(READY)
    late(ranks, clock, 1.0, 0.9)
    assert not caplog.messages
    late(ranks, clock, 60.0, 0.9)
    assert [text.partition(". The")[0] for text in caplog.messages] == [
        "worker 0 is starved of CPU: late steps waited 1.8 of 2.0 s for a CPU"
    ]
    late(ranks, clock, 4.0, 0.9)
    assert len(caplog.messages) == 2
    counted = metrics.registry.get_sample_value(
        "numaserve_worker_starved_seconds_total", {"rank": "0", "model_name": "m"}
    )
    assert counted == pytest.approx(0.9 * 65)
    assert is_starved(ranks)
    clock.now += 10.1
    assert not is_starved(ranks)


def test_ranks_that_wait_in_turn_are_starved_together(
    ranks: Ranks, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    ranks.describe(READY)
    for _ in range(4):
        late(ranks, clock, 0.25, 0.0, 0.9, 0.1)
        late(ranks, clock, 0.25, 0.9, 0.0, 0.1)
    assert "worker 0, 1 is starved of CPU: late steps waited 1.8 of 2.0 s" in caplog.text
    assert is_starved(ranks)


def test_a_late_rank_that_has_its_processor_most_of_the_time_is_not_starved(
    ranks: Ranks, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    ranks.describe(READY)
    late(ranks, clock, 30.0, 0.4)
    assert not caplog.messages
    assert not is_starved(ranks)


def test_a_rank_that_has_its_processor_again_is_starved_no_longer_though_its_steps_are_late(
    ranks: Ranks, clock: Clock
) -> None:
    ranks.describe(READY)
    late(ranks, clock, 40.0, 0.9)
    late(ranks, clock, 20.0, 0.1)
    assert not is_starved(ranks)
