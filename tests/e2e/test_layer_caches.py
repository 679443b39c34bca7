"""Models whose layers keep different things: the same bits whatever the load, as for those whose layers are alike."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from numaserve.workers.models.load import load_model_config

from tests.support import newcomer
from tests.support.new_models import save_echo, save_two_geometries
from tests.support.rank_group import RankGroup, WorkerFailed
from tests.support.same_bits import FEW_PAGES, make_group, random_requests, scheduler_config, ways_to_serve
from tests.support.traffic import Answer, Traffic, each_alone


@pytest.fixture(scope="module", autouse=True)
def _families() -> Iterator[None]:
    newcomer.register()
    yield
    newcomer.unregister()


def answers_alone(group: RankGroup) -> list[Answer]:
    return each_alone(group, scheduler_config(), random_requests())


@pytest.mark.parametrize("kv_cache_dtype", ["bf16", "int8"])
@pytest.mark.parametrize("tp", [1, 2, 3])
def test_two_geometries_and_a_window_change_no_bit(tmp_path: Path, tp: int, kv_cache_dtype: str) -> None:
    model = save_two_geometries(tmp_path / "model")
    with make_group(model, tp, kv_cache_dtype=kv_cache_dtype) as group:
        alone = answers_alone(group)
        for ahead, changes in ways_to_serve(group):
            traffic = Traffic(group, scheduler_config(**changes), ahead=ahead)
            assert traffic.serve(random_requests()) == alone, changes


@pytest.mark.parametrize("tp", [1, 2, 3])
def test_a_state_changes_no_bit(tmp_path: Path, tp: int) -> None:
    model = save_echo(tmp_path / "model")
    assert load_model_config(model).has_states
    with make_group(model, tp) as group:
        alone = answers_alone(group)
        for ahead, changes in ((1, {}), (2, {"max_step_tokens": 64}), (2, {"num_pages": FEW_PAGES})):
            traffic = Traffic(group, scheduler_config(**changes), ahead=ahead)
            assert traffic.serve(random_requests()) == alone, changes
            assert (traffic.scheduler.stats().retractions > 0) == ("num_pages" in changes)


def test_a_prefix_alone_does_not_continue_a_state(tmp_path: Path) -> None:
    """The pages of a prefix are not enough: workers refuse to go on from states of other tokens."""
    with make_group(save_echo(tmp_path / "model"), 1) as group:
        traffic = Traffic(group, scheduler_config(enable_prefix_cache=True))
        with pytest.raises(WorkerFailed, match=r"begins at position \d+, but its states are those after"):
            traffic.serve(random_requests())
