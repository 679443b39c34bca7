"""The caches that layers declare: memory, kinds, places, and the results of the reference."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numaserve.kernels import Team
from numaserve.workers.interface.protocol import PAGE_SIZE
from numaserve.workers.interface.settings import Backend
from numaserve.workers.interface.windows import ALL, Window
from numaserve.workers.models.load import load_model_config
from numaserve.workers.planning.deployment import make_deployment
from numaserve.workers.planning.needs import rank_needs
from numaserve.workers.process.rank_program import RankWeights
from numaserve.workers.program.caches import CacheIndex

from tests.support import newcomer
from tests.support.loaded import load_part
from tests.support.machines import OPTIONS, machine
from tests.support.new_models import INNER, LAYERS, save_echo, save_two_geometries
from tests.support.reference_group import run_group

TOKENS = np.random.default_rng(0).integers(3, 300, 150)


@pytest.fixture(autouse=True)
def _families() -> Iterator[None]:
    newcomer.register()
    yield
    newcomer.unregister()


def test_layers_are_numbered_within_their_kind(tmp_path: Path) -> None:
    model = load_model_config(save_two_geometries(tmp_path / "model"))
    shape = model.decoder.shape(model.partition([1, 1, 1]).ranks[2])
    narrow, wide = shape.caches
    assert (narrow.heads.query, narrow.heads.kv, narrow.heads.dim, narrow.window, narrow.layers) == (2, 1, 64, ALL, 2)
    assert (wide.heads.dim, wide.window, wide.layers) == (128, Window(100), 2)
    assert not model.has_states
    places = model.decoder.layer_caches(model.partition([1]).ranks[0]).places
    assert places == (CacheIndex(0, 0), CacheIndex(1, 0), CacheIndex(0, 1), CacheIndex(1, 1))


def test_pages_and_slots_take_what_each_layer_declares(tmp_path: Path) -> None:
    geometries = load_model_config(save_two_geometries(tmp_path / "geometries"))
    (part,) = geometries.partition([1]).ranks
    assert geometries.decoder.page_bytes(part, "bf16") == LAYERS // 2 * 2 * 2 * PAGE_SIZE * (3 * 64 + 2 * 128)
    assert geometries.decoder.slot_bytes(part) == 0
    echo = load_model_config(save_echo(tmp_path / "echo"))
    (part,) = echo.partition([1]).ranks
    assert echo.decoder.page_bytes(part, "bf16") == LAYERS // 2 * 2 * 2 * PAGE_SIZE * 3 * 32
    assert echo.decoder.slot_bytes(part) == LAYERS // 2 * 4 * INNER


def test_states_are_planned_memory(tmp_path: Path) -> None:
    model = load_model_config(save_echo(tmp_path / "model"))
    partition = model.partition([1])
    few, many = (rank_needs(replace(OPTIONS, max_running_requests=count), model, partition) for count in (2, 60))
    each = model.decoder.slot_bytes(partition.ranks[0])
    assert (few.states, many.states) == ([2 * each], [60 * each])
    assert (few.per_snapshot, many.state_bytes(0, 5)) == ([each], 65 * each)
    assert few.scratch == many.scratch


@pytest.mark.parametrize("drafts", [False, True])
@pytest.mark.parametrize("backend", ["native", "reference"])
def test_workers_report_the_caches_that_were_planned(backend: Backend, drafts: bool, tmp_path: Path) -> None:
    folder = save_echo(tmp_path / "model")
    options = replace(OPTIONS, model=str(folder), state_cache_gib=0.001, backend=backend, drafts=drafts)
    deployment = make_deployment(options, load_model_config(folder), machine(4, 3))
    assert deployment.capacity.num_snapshots > 1000
    for launch, rank in zip(deployment.launches, deployment.ranks, strict=True):
        held = RankWeights(launch)
        assert (held.kv_bytes, held.state_bytes) == (rank.kv_bytes, rank.state_bytes)


@pytest.mark.parametrize("tp", [1, 2, 3])
@pytest.mark.parametrize("save", [save_two_geometries, save_echo])
def test_ranks_compute_what_one_computes(save: Callable[[Path], Path], tp: int, tmp_path: Path, team: Team) -> None:
    folder = save(tmp_path / "model")
    (alone,) = run_group([load_part(folder, team, [1], positions=192)], TOKENS)
    for logits in run_group([load_part(folder, team, [1] * tp, rank, positions=192) for rank in range(tp)], TOKENS):
        np.testing.assert_allclose(logits, alone, atol=5e-4)


def test_an_echo_is_the_input_of_the_token_before(tmp_path: Path, team: Team) -> None:
    """Logits follow when the whole sequence is read: a token's echo depends on the token before it alone."""
    folder = save_echo(tmp_path / "model")
    (logits,) = run_group([load_part(folder, team, [1], positions=192)], TOKENS)
    changed = TOKENS.copy()
    changed[-2] = (changed[-2] + 1) % 300
    (others,) = run_group([load_part(folder, team, [1], positions=192)], changed)
    np.testing.assert_array_equal(logits[:-2], others[:-2])
    assert np.abs(logits[-1] - others[-1]).max() > 1e-3
