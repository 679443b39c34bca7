"""Expert parallelism: every routed expert is whole and on one rank; all else is divided as without it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numaserve.kernels import Team
from numaserve.workers.errors import OperatorError
from numaserve.workers.models.config.load import load_model_config
from numaserve.workers.models.registry import FAMILIES
from numaserve.workers.models.spec import MoeConfig
from numaserve.workers.models.stored import Stored
from numaserve.workers.planning.deployment import make_deployment
from numaserve.workers.protocol import WeightsCache
from numaserve.workers.settings import AS_PUBLISHED, ModelSettings, WeightFormat, WeightFormats
from numaserve.workers.weights import loader
from numaserve.workers.weights.cache import key as key_module
from numaserve.workers.weights.cache.loading import LoadedWeights, RankLoader
from numaserve.workers.weights.checkpoint import open_source
from numaserve.workers.weights.formats import MatrixFormat, MoeFormats, layer_formats
from numaserve.workers.weights.sharding import make_shard, weight_bytes
from numaserve.workers.weights.weights import MoeWeights, Weights
from numpy_builder import run_group
from safetensors.torch import load_file
from test_quantized_loading import TOKENS

from tests.support import checkpoints
from tests.support.machines import OPTIONS, machine
from tests.support.model_configs import model_config, moe_config
from tests.support.published_checkpoints import save_published, small_qwen2_moe

pytestmark = pytest.mark.usefixtures("numpy_vectors")

SHARES = [[1, 1], [3, 2], [1, 1, 1], [4, 1, 2]]
FAMILIES_WITH_EXPERTS = [*checkpoints.MOE_CASES, *checkpoints.LATENT_CASES]
FORMATS: list[WeightFormat] = ["bf16", "int8", "int4", "fp8"]
MOE = model_config(
    family="qwen2_moe", moe=MoeConfig(64, 8, 768, shared_intermediate_size=1024), moe_layers=tuple(range(30))
)
WHOLE = ModelSettings(expert_parallel=True)
PARALLEL = replace(OPTIONS, settings=WHOLE)


@pytest.fixture(scope="module")
def team() -> Team:
    return Team([-1])


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A checkpoint of every family."""
    return {
        case: checkpoints.save(checkpoints.random_model(case), tmp_path_factory.mktemp(case))
        for case in FAMILIES_WITH_EXPERTS
    }


def load(path: Path, shares: list[int], team: Team, formats: WeightFormats = AS_PUBLISHED) -> list[Weights]:
    """Every rank's weights; what a deployment counts for each is what they take."""
    config = load_model_config(path)
    source = open_source(path, config)
    group = []
    for rank in range(len(shares)):
        shard, done = make_shard(config, shares, rank, WHOLE), []
        group.append(loader.load_weights(source, config, shard, team, done.append, positions=64, formats=formats))
        counted = weight_bytes(config, shares, rank, ModelSettings(formats=formats, expert_parallel=True))
        assert counted == done[-1] == sum(matrix.nbytes for matrix in group[-1].matrices)
    return group


def experts_of(weights: Weights, layer: int = -1) -> MoeWeights:
    mlp = weights.layers[layer].mlp
    assert isinstance(mlp, MoeWeights)
    return mlp


@given(weights=st.lists(st.integers(1, 64), min_size=1, max_size=20))
def test_every_expert_is_whole_and_on_one_rank_and_the_rest_is_divided_as_ever(weights: list[int]) -> None:
    config = moe_config()
    shards = [make_shard(config, weights, rank, WHOLE) for rank in range(len(weights))]
    assert [expert for shard in shards for expert in shard.experts] == list(range(12))
    for shard, weight in zip(shards, weights, strict=True):
        assert abs(len(shard.experts) - 12 * weight / sum(weights)) < 1
        assert shard.expert_intermediate == range(768)
        divided = make_shard(config, weights, shard.rank)
        assert divided.experts == range(12)
        assert divided == replace(shard, experts=range(12), expert_intermediate=divided.expert_intermediate)


@given(weights=st.lists(st.integers(1, 64), min_size=2, max_size=3))
def test_the_ranks_together_take_the_memory_of_every_expert_once(weights: list[int]) -> None:
    config, routers = moe_config(), 29 * 32 * 576 * 2
    whole = weight_bytes(config, [1], 0) - routers
    parts = [weight_bytes(config, weights, rank, WHOLE) - routers for rank in range(len(weights))]
    # A part of the vocabulary may end in half a pair of panels.
    assert 0 <= sum(parts) - whole <= len(weights) * 16 * 576 * 2


def test_a_dense_model_has_no_experts_to_hold() -> None:
    assert make_shard(model_config(), [1, 1], 1, WHOLE) == make_shard(model_config(), [1, 1], 1)


def test_groups_of_experts_are_not_cut() -> None:
    int4 = Stored("gptq", "int4", 128, bits=4)
    names = [f"layers.0.mlp.experts.{index}.{part}_proj" for index in range(3) for part in ("gate", "up", "down")]
    config = moe_config(stored=dict.fromkeys(names, int4))
    moe = MoeConfig(3, 2, 640)  # 320 columns of each on a rank would be groups of 64
    config = replace(config, family="qwen3_moe", moe=moe, moe_layers=(0,))
    for rank in range(2):
        shard = make_shard(config, [1, 1], rank, WHOLE)
        made = layer_formats(config, AS_PUBLISHED, shard, 0).mlp
        assert isinstance(made, MoeFormats)
        assert made.experts.down == MatrixFormat("int4", 128)
    divided = layer_formats(config, AS_PUBLISHED, make_shard(config, [1, 1], 1), 0).mlp
    assert isinstance(divided, MoeFormats)
    assert divided.experts.down == MatrixFormat("int4", 64)


@pytest.mark.parametrize("shares", SHARES, ids=str)
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("case", FAMILIES_WITH_EXPERTS)
def test_every_format_takes_the_memory_that_is_counted(
    case: str, format: WeightFormat, shares: list[int], saved: dict[str, Path], team: Team
) -> None:
    group = load(saved[case], shares, team, WeightFormats(format, "bf16"))
    assert {matrix.format for weights in group for matrix in experts_of(weights).matrices[1:]} == {format}


def test_a_rank_has_the_experts_of_its_range(saved: dict[str, Path], team: Team) -> None:
    tensors = load_file(saved["qwen2_moe"] / "model.safetensors")
    group = [experts_of(weights) for weights in load(saved["qwen2_moe"], [4, 3], team)]
    assert [mlp.experts for mlp in group] == [range(4), range(4, 7)]
    for mlp in group:
        for expert, down, gate_up in zip(mlp.experts, mlp.down, mlp.gate_up, strict=True):
            at = f"model.layers.2.mlp.experts.{expert}."
            np.testing.assert_array_equal(down.to_numpy(), tensors[f"{at}down_proj.weight"].float().numpy())
            for half, name in enumerate(("gate_proj", "up_proj")):
                rows = gate_up.to_numpy().reshape(-1, 2, 16, gate_up.k)[:, half].reshape(-1, gate_up.k)[: down.k]
                np.testing.assert_array_equal(rows, tensors[f"{at}{name}.weight"].float().numpy())
    assert sum(mlp.shared.down.k for mlp in group if mlp.shared) == 200


@pytest.mark.parametrize("shares", [[1, 1], [4, 1, 2], [1] * 6], ids=str)  # mixtral has five experts
@pytest.mark.parametrize("case", checkpoints.MOE_CASES)
def test_the_ranks_compute_what_transformers_does(
    case: str, shares: list[int], saved: dict[str, Path], team: Team
) -> None:
    config = load_model_config(saved[case])
    with torch.no_grad():
        expected = checkpoints.random_model(case)(torch.from_numpy(TOKENS)[None]).logits[0].numpy()
    group = load(saved[case], shares, team)
    for logits in run_group(FAMILIES[config.family].forward, config, group, TOKENS):
        np.testing.assert_allclose(logits, expected, atol=3e-4)


def test_a_rank_without_experts_has_its_columns_of_the_shared_one(saved: dict[str, Path], team: Team) -> None:
    group = [experts_of(weights) for weights in load(saved["qwen2_moe"], [1] * 8, team)]
    (empty,) = [mlp for mlp in group if not mlp.experts]
    assert (empty.gate_up, empty.down) == ((), ())
    assert empty.shared is not None
    assert empty.matrices == [empty.router, *empty.shared.matrices]


def test_the_second_start_finds_the_experts_of_the_rank(
    tmp_path: Path, team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_module, "_SETTLED_S", -1e9)
    path = save_published(small_qwen2_moe(), tmp_path / "model", "awq")
    config, cache = load_model_config(path), WeightsCache(str(tmp_path / "packed"), 1 << 30)

    def start(expert_parallel: bool) -> LoadedWeights:
        which = RankLoader(path, config, [2, 1], 1, 64, ModelSettings(expert_parallel=expert_parallel), cache)
        return which.load(team, lambda _: None)

    first = start(True)
    assert first.save is not None
    first.save(lambda: None)
    second = start(True)
    assert (first.origin, second.origin) == ("checkpoint", "cache")
    contents = [[bytes(matrix.buffer()) for matrix in each.weights.matrices] for each in (first, second)]
    assert contents[0] == contents[1]
    assert start(False).origin == "checkpoint"


def test_a_deployment_counts_whole_experts() -> None:
    deployment = make_deployment(replace(PARALLEL, tp=3), MOE, machine(43, 43, 42, free_gib=200))
    divided = make_deployment(replace(OPTIONS, tp=3), MOE, machine(43, 43, 42, free_gib=200))
    assert all(launch.settings.expert_parallel for launch in deployment.launches)
    assert not any(launch.settings.expert_parallel for launch in divided.launches)
    for rank, other in zip(deployment.ranks, divided.ranks, strict=True):
        assert rank.weight_bytes == weight_bytes(MOE, [43, 43, 42], rank.rank, WHOLE)
        # All of a token's experts may be on one rank.
        columns = len(make_shard(MOE, [43, 43, 42], rank.rank).expert_intermediate)
        assert rank.scratch_bytes - other.scratch_bytes == 512 * 4 * 8 * 3 * (768 - columns)


def test_a_rank_with_fewer_experts_than_a_token_has_counts_rows_for_those() -> None:
    few = replace(MOE, moe=MoeConfig(5, 4, 768))
    scratch = [rank.scratch_bytes for rank in make_deployment(PARALLEL, few, machine(2, 2, free_gib=200)).ranks]
    more = replace(MOE, moe=MoeConfig(6, 4, 768))
    even = [rank.scratch_bytes for rank in make_deployment(PARALLEL, more, machine(2, 2, free_gib=200)).ranks]
    rows = 512 * 4 * (2 * 576 + 3 * 768)
    assert even[0] - scratch[0] == 512 * 4  # one more score
    assert even[1] - scratch[1] == rows + 512 * 4


@pytest.mark.parametrize(
    ("model", "nodes", "message"),
    [
        (model_config(), (4, 4), "this one has none: leave it out"),
        (MOE, (4,), "there is one rank: set --tp to 2 or more, or leave it out"),
        (replace(MOE, moe_layers=()), (4, 4), "this one has none"),
    ],
)
def test_where_there_is_nothing_to_divide_it_is_refused(model: object, nodes: tuple[int, ...], message: str) -> None:
    with pytest.raises(OperatorError, match=message):
        make_deployment(PARALLEL, model, machine(*nodes))  # type: ignore[arg-type]
