"""The scheduler's counters, as /metrics shows them."""

from numaserve.server.engine.views.gauges import Gauges
from numaserve.server.metrics.metrics import Metrics
from numaserve.server.scheduler.images import PlacedTile, Tile
from numaserve.server.scheduler.scheduler import Scheduler
from numaserve.workers.interface.protocol import OperationTerms, SamplingParams, SeqResult, StepResult
from numaserve.workers.interface.windows import Window, WindowTable

from tests.support.plan_limits import plan_limits
from tests.support.sequences import planned, sequence


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, {"model_name": "m", **labels})


def serve(scheduler: Scheduler, prompt: list[int]) -> None:
    """Compute a prompt to its end."""
    scheduler.add(sequence("request", prompt, SamplingParams(), 1))
    plan = planned(scheduler)
    scheduler.apply(StepResult(plan.step_id, 0, [SeqResult(7)], 0, 0, 0))


def test_snapshots_and_anchors_are_counted_once() -> None:
    scheduler, metrics = Scheduler(plan_limits(16, 64, page_size=4, num_snapshots=3)), Metrics("m")
    gauges = Gauges(metrics, scheduler)
    assert value(metrics, "numaserve_snapshots", state="free") == 3
    shared = list(range(12))
    for own in range(3):
        serve(scheduler, [*shared, *range(100 * own, 100 * own + 8)])
        gauges.set()
    gauges.set()
    assert value(metrics, "numaserve_snapshots", state="cached") == 3
    assert value(metrics, "numaserve_anchor_hits_total") == 1
    assert value(metrics, "numaserve_unanchored_tokens_total") == 12


def test_window_pages_and_anchors_are_counted() -> None:
    window = Window(32)
    pages = window.least_pages(1, 64)
    config = plan_limits(64, 1024, 1, 64, window_tables=(WindowTable(window, pages),))
    scheduler, metrics = Scheduler(config), Metrics("m")
    gauges = Gauges(metrics, scheduler)
    scheduler.add(sequence("request", list(range(64)), SamplingParams(), 2))
    assert scheduler.schedule() is not None
    gauges.set()
    assert [value(metrics, "numaserve_window_pages", state=state) for state in ("free", "cached", "active")] == [
        pages - 2,
        0,
        2,
    ]
    assert scheduler.finish("request")
    gauges.set()
    assert value(metrics, "numaserve_window_pages", state="cached") == 2
    assert value(metrics, "numaserve_anchor_hits_total") == 0
    assert value(metrics, "numaserve_snapshots", state="free") is None


def test_a_model_without_states_and_windows_has_no_metrics_of_anchors() -> None:
    metrics = Metrics("m")
    Gauges(metrics, Scheduler(plan_limits(16, 64))).set()
    assert value(metrics, "numaserve_snapshots", state="free") is None
    assert value(metrics, "numaserve_window_pages", state="free") is None
    assert value(metrics, "numaserve_anchor_hits_total") is None


def test_tiles_and_the_time_of_the_tower_are_counted_once() -> None:
    scheduler = Scheduler(plan_limits(16, 64, page_size=4, feature_tiles=2, rows_per_tile=2, enable_prefix_cache=False))
    scheduler.step_costs.describe([], [], [[OperationTerms("patches", row_flops=1.0)]])
    metrics = Metrics("m")
    gauges = Gauges(metrics, scheduler)
    assert value(metrics, "numaserve_image_tiles_total", features="computed") == 0
    for _ in range(2):
        images = (PlacedTile(1, Tile(0, b"cat", 1, 2)),)
        scheduler.add(sequence("request", [1, 0, 0], SamplingParams(), 1, images=images))
        plan = planned(scheduler)
        scheduler.apply(
            StepResult(plan.step_id, 0, [SeqResult(7)], 0, 0, 10**9, tower_ns=5 * 10**8 if plan.tower else 0)
        )
        gauges.set()
    gauges.set()
    assert value(metrics, "numaserve_image_tiles_total", features="computed") == 1
    assert value(metrics, "numaserve_image_tiles_total", features="found") == 1
    assert value(metrics, "numaserve_vision_tower_seconds_total") == 0.5


def test_a_model_that_reads_no_images_has_no_metrics_of_them() -> None:
    scheduler, metrics = Scheduler(plan_limits(16, 64)), Metrics("m")
    Gauges(metrics, scheduler).set()
    assert value(metrics, "numaserve_image_tiles_total", features="found") is None
