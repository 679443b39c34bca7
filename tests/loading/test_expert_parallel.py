"""Expert parallelism: every routed expert is whole and on one rank; all else is divided as without it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numaserve.kernels import Team
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.protocol import WeightsCache
from numaserve.workers.interface.settings import AS_PUBLISHED, ModelSettings, WeightFormat, WeightFormats
from numaserve.workers.layers.axes import Axis
from numaserve.workers.layers.experts import Experts
from numaserve.workers.layers.stored import Stored
from numaserve.workers.models.load import load_model_config, open_model
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.planning.deployment import make_deployment
from numaserve.workers.program.handles import MatrixFormat
from numaserve.workers.weights.cache import key as key_module
from numaserve.workers.weights.cache.loading import LoadedWeights, RankLoader
from safetensors.torch import load_file
from test_moe_loading import experts_of
from test_quantized_loading import TOKENS
from test_sharding import axes_of, bytes_of_ranks, copied_bytes, weight_bytes

from tests.support import checkpoints
from tests.support.configured import configured, with_experts
from tests.support.families.table import EXPERTS, WITH_EXPERTS
from tests.support.loaded import Loaded, load_part
from tests.support.machines import OPTIONS, machine
from tests.support.published_checkpoints import save_published, small_qwen2_moe
from tests.support.reference_group import run_group

SHARES = [[1, 1], [3, 2], [1, 1, 1], [4, 1, 2]]
FAMILIES_WITH_EXPERTS = [*WITH_EXPERTS]
FORMATS: list[WeightFormat] = ["bf16", "int8", "int4", "fp8"]
MOE, TWELVE = with_experts(64, 8, dense=()), with_experts()
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


def load(path: Path, shares: list[int], team: Team, formats: WeightFormats = AS_PUBLISHED) -> list[Loaded]:
    settings = ModelSettings(formats=formats, expert_parallel=True)
    return [load_part(path, team, shares, rank, settings=settings) for rank in range(len(shares))]


def axes(model: ModelConfig) -> tuple[Axis, Axis]:
    """The experts, and the columns of each."""
    mlp = model.decoder.blocks[-1].mlp
    assert isinstance(mlp, Experts)
    return mlp.experts, mlp.columns


@given(weights=st.lists(st.integers(1, 64), min_size=1, max_size=20))
def test_every_expert_is_whole_and_on_one_rank_and_the_rest_is_divided_as_ever(weights: list[int]) -> None:
    whole, divided = TWELVE.partition(weights, WHOLE), TWELVE.partition(weights)
    experts, columns = axes(TWELVE)
    assert [expert for part in whole.ranges(experts) for expert in part] == list(range(12))
    for part, weight in zip(whole.ranges(experts), weights, strict=True):
        assert abs(len(part) - 12 * weight / sum(weights)) < 1
    assert whole.ranges(columns) == [range(768)] * len(weights)
    assert divided.ranges(experts) == [range(12)] * len(weights)
    for name, axis in axes_of(TWELVE).items():
        assert name in {"experts", "expert_intermediate"} or whole.ranges(axis) == divided.ranges(axis)


@given(weights=st.lists(st.integers(1, 64), min_size=2, max_size=3))
def test_the_ranks_together_take_the_memory_of_every_expert_once(weights: list[int]) -> None:
    routers = 29 * 32 * 576 * 2
    whole = weight_bytes(TWELVE, [1], 0) - routers
    together = bytes_of_ranks(TWELVE, weights, WHOLE) - len(weights) * routers
    # A part of the vocabulary may end in half a pair of panels.
    assert 0 <= together - whole - copied_bytes(TWELVE, weights) <= len(weights) * 16 * 576 * 2


def test_groups_of_experts_are_not_cut() -> None:
    int4 = Stored("gptq", "int4", 128, bits=4)
    names = [f"layers.0.mlp.experts.{index}.{part}_proj" for index in range(3) for part in ("gate", "up", "down")]
    # 320 columns of each on a rank would be groups of 64.
    model = with_experts(3, 2, 640, dense=(), stored=dict.fromkeys(names, int4))
    mlp = model.decoder.blocks[0].mlp
    assert isinstance(mlp, Experts)
    for part in model.partition([1, 1], WHOLE).ranks:
        assert part.format(mlp.down) == MatrixFormat("int4", 128)
    assert model.partition([1, 1]).ranks[1].format(mlp.down) == MatrixFormat("int4", 64)


@pytest.mark.spread("format", "shares")
@pytest.mark.parametrize("shares", SHARES, ids=str)
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("case", FAMILIES_WITH_EXPERTS)
def test_every_format_takes_the_memory_that_is_counted(
    case: str, format: WeightFormat, shares: list[int], saved: dict[str, Path], team: Team
) -> None:
    group = load(saved[case], shares, team, WeightFormats(format, "bf16"))
    assert {matrix.format for weights in group for matrix in experts_of(weights, -1).all} == {format}


def test_a_rank_has_the_experts_of_its_range(saved: dict[str, Path], team: Team) -> None:
    tensors = load_file(saved["qwen2_moe"] / "model.safetensors")
    group = [experts_of(weights, -1) for weights in load(saved["qwen2_moe"], [4, 3], team)]
    assert [mlp.held for mlp in group] == [range(4), range(4, 7)]
    for mlp in group:
        for expert, down, gate_up in zip(mlp.held, mlp.down, mlp.gate_up, strict=True):
            at = f"model.layers.2.mlp.experts.{expert}."
            np.testing.assert_array_equal(down.to_numpy(), tensors[f"{at}down_proj.weight"].float().numpy())
            for half, name in enumerate(("gate_proj", "up_proj")):
                rows = gate_up.to_numpy().reshape(-1, 2, 16, gate_up.k)[:, half].reshape(-1, gate_up.k)[: down.k]
                np.testing.assert_array_equal(rows, tensors[f"{at}{name}.weight"].float().numpy())
    assert sum(mlp.shared[1].k for mlp in group) == 200


@pytest.mark.spread("shares")
@pytest.mark.parametrize("shares", [[1, 1], [4, 1, 2], [1] * 6], ids=str)  # mixtral has five experts
@pytest.mark.parametrize("case", EXPERTS)
def test_the_ranks_compute_what_transformers_does(
    case: str, shares: list[int], saved: dict[str, Path], team: Team
) -> None:
    with torch.no_grad():
        expected = checkpoints.random_model(case)(torch.from_numpy(TOKENS)[None]).logits[0].numpy()
    group = load(saved[case], shares, team)
    for logits in run_group(group, TOKENS):
        np.testing.assert_allclose(logits, expected, atol=3e-4)


def test_a_rank_without_experts_has_its_columns_of_the_shared_one(saved: dict[str, Path], team: Team) -> None:
    group = [experts_of(weights, -1) for weights in load(saved["qwen2_moe"], [1] * 8, team)]
    (empty,) = [mlp for mlp in group if not mlp.held]
    assert (empty.gate_up, empty.down, len(empty.shared)) == ([], [], 2)


def test_the_second_start_finds_the_experts_of_the_rank(
    tmp_path: Path, team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_module, "SETTLED_S", -1e9)
    path = save_published(small_qwen2_moe(), tmp_path / "model", "awq")
    config, cache = load_model_config(path), WeightsCache(str(tmp_path / "packed"), 1 << 30)

    def start(expert_parallel: bool) -> LoadedWeights:
        part = config.partition([2, 1], ModelSettings(expert_parallel=expert_parallel)).ranks[1]
        which = RankLoader(open_model(path), config, part, 64, cache)
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
        columns = len(MOE.partition([43, 43, 42]).ranks[rank.rank].along(axes(MOE)[1]))
        assert rank.scratch_bytes - other.scratch_bytes == 512 * 4 * 8 * 3 * (768 - columns)


def test_a_rank_with_fewer_experts_than_a_token_has_plans_rows_for_those() -> None:
    few = with_experts(5, 4, dense=())
    scratch = [rank.scratch_bytes for rank in make_deployment(PARALLEL, few, machine(2, 2, free_gib=200)).ranks]
    more = with_experts(6, 4, dense=())
    even = [rank.scratch_bytes for rank in make_deployment(PARALLEL, more, machine(2, 2, free_gib=200)).ranks]
    rows = 512 * 4 * (2 * 576 + 3 * 768)
    assert even[0] - scratch[0] == 512 * 4  # one more score
    assert even[1] - scratch[1] == rows + 512 * 4


@pytest.mark.parametrize(
    ("model", "nodes", "message"),
    [
        (configured(), (4, 4), "this model has none: leave the option out"),
        (MOE, (4,), "there is one: set --tp to 2 or more, or leave --expert-parallel out"),
        (with_experts(dense=tuple(range(30))), (4, 4), "this model has none"),
    ],
)
def test_where_there_is_nothing_to_divide_it_is_refused(model: object, nodes: tuple[int, ...], message: str) -> None:
    with pytest.raises(OperatorError, match=message):
        make_deployment(PARALLEL, model, machine(*nodes))  # type: ignore[arg-type]
