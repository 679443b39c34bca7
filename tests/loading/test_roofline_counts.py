"""What the roofline model counts is what the native Program counts, operation by operation."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numaserve import kernels as native
from numaserve.kernels import Program, RopeTable, Team
from numaserve.workers.bench.programs import start_slot, step
from numaserve.workers.bench.shapes import SHAPES
from numaserve.workers.interface.capacity import Capacity
from numaserve.workers.interface.protocol import PAGE_SIZE
from numaserve.workers.interface.settings import DEFAULT_SETTINGS, KvCacheDtype, ModelSettings, WeightFormats
from numaserve.workers.models.load import load_model_config
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.planning.roofline.ranks import rank_operations
from numaserve.workers.program.buffers import Operand, Tensor
from numaserve.workers.program.cost import OperationCost, StepWork
from numaserve.workers.program.handles import Matrix, Rope, Vector
from numaserve.workers.program.native import make_program
from numaserve.workers.program.recording.builder import ProgramBuilder
from numaserve.workers.program.setup import ProgramSetup, Ranks

PAGES = 8
SLOTS = 2
LIMITS = Capacity.of_program(
    max_step_tokens=128, max_logit_rows=16, max_slots=SLOTS, pages_per_slot=PAGES, num_pages=PAGES * SLOTS
)
# A prompt in two chunks, a second one, then both go on.
STEPS = (
    [(0, 0, 100, False)],
    [(0, 100, 28, True), (1, 0, 70, True)],
    [(0, 128, 1, True), (1, 70, 1, True)],
)
MOE = {
    "architectures": ["Qwen2MoeForCausalLM"],
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 96,
    "shared_expert_intermediate_size": 64,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [0],
}
MXFP4 = {
    "architectures": ["GptOssForCausalLM"],
    "num_local_experts": 6,
    "num_experts_per_tok": 6,
    "sliding_window": 40,
    "quantization_config": {"quant_method": "mxfp4"},
}
DENSE = {
    "llama": {},
    "qwen2": {"architectures": ["Qwen2ForCausalLM"]},
    "gemma2": {
        "architectures": ["Gemma2ForCausalLM"],
        "sliding_window": 40,
        "query_pre_attn_scalar": 16,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "hidden_activation": "gelu_pytorch_tanh",
    },
}

# Layers with a gated delta net and with gated attention alternate; key heads do not divide by 2.
HYBRID = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "full_attention_interval": 2,
    "linear_num_key_heads": 3,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 24,
    "linear_value_head_dim": 40,
}

# Heads over a latent of 64 + 32, one dense layer, one of experts.
LATENT = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "num_key_value_heads": 4,
    "q_lora_rank": 48,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 32,
    "v_head_dim": 32,
    "n_routed_experts": 8,
    "num_experts_per_tok": 4,
    "n_shared_experts": 1,
    "moe_intermediate_size": 64,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 2.5,
    "n_group": 2,
    "topk_group": 2,
    "norm_topk_prob": True,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
}

Counts = dict[tuple[str, str], tuple[float, float]]


def config_of(folder: Path, more: dict[str, Any]) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps(SHAPES["tiny"].config() | more))
    return load_model_config(folder)


class LoneRank(ProgramBuilder):
    """What other ranks would have made stays what it was."""

    def latents(self, x: Operand, weight: Matrix, bounds: tuple[int, ...] = ()) -> Tensor:
        out = Tensor(x.rows, max(weight.n, *bounds, 0), 4)
        self._linear("linear", x, weight, out)
        return out


class Zeros:
    """Native weights with nothing in them."""

    def __init__(self) -> None:
        self._made: dict[Any, Any] = {}

    def __call__(self, handle: Matrix | Vector | Rope) -> Any:
        if handle not in self._made:
            self._made[handle] = self._make(handle)
        return self._made[handle]

    def _make(self, handle: Matrix | Vector | Rope) -> Any:
        if isinstance(handle, Rope):
            return rope_table(handle.config.rotary_dim)
        if isinstance(handle, Vector):
            return native.Vector(np.zeros(handle.size, np.float32))
        return native.PackedMatrix(handle.n, handle.k, handle.format, handle.group, handle.offsets)


def zero_program(
    config: ModelConfig,
    shares: Sequence[int],
    rank: int,
    settings: ModelSettings = DEFAULT_SETTINGS,
) -> Program:
    """The rank's own Program, of real matrices with nothing in them, without the other ranks."""
    part, decoder = config.partition(shares, settings).ranks[rank], config.decoder
    shape = replace(decoder.shape(part), vocab_bounds=(0, len(part.along(decoder.embedding.axis))))
    b = LoneRank(ProgramSetup(shape, LIMITS, Ranks((2,)), settings))
    decoder.forward(b, part)
    return make_program(b.setup, b.fused(), Team([-1, -1]), weights=Zeros())


def operations_of(
    config: ModelConfig, shares: Sequence[int], rank: int, settings: ModelSettings = DEFAULT_SETTINGS
) -> list[OperationCost]:
    return rank_operations(config.decoder, config.partition(shares, settings).ranks[rank])


def rope_table(rotary_dim: int) -> RopeTable:
    angles = np.zeros((PAGES * PAGE_SIZE, rotary_dim // 2), np.float32)
    return RopeTable(np.cos(angles), np.sin(angles))


def native_counts(program: Program, steps: Sequence[list[tuple[int, int, int, bool]]]) -> Counts:
    for slot in range(SLOTS):
        start_slot(program, slot, range(slot * PAGES, (slot + 1) * PAGES))
    for sequences in steps:
        step(program, sequences)
    found: Counts = {}
    for name, format, _, _, _, nbytes, flops in program.profile():
        before = found.get((name, format), (0, 0))
        found[name, format] = (before[0] + nbytes, before[1] + flops)
    return {key: value for key, value in found.items() if value != (0, 0)}


def counted(operations: Sequence[OperationCost], steps: Sequence[list[tuple[int, int, int, bool]]]) -> Counts:
    found: Counts = {}
    for sequences in steps:
        work = StepWork([(start, count) for _, start, count, _ in sequences], sum(row[3] for row in sequences))
        for operation in operations:
            amount, key = operation.amount(work), (operation.name, operation.computes)
            before = found.get(key, (0, 0))
            found[key] = (before[0] + amount.nbytes, before[1] + amount.flops)
    return {key: value for key, value in found.items() if value != (0, 0)}


@pytest.mark.parametrize("model", [{}, DENSE["gemma2"], HYBRID, MOE, LATENT])
def test_every_node_reads_weights_or_states_or_moves_rows(model: dict[str, Any], tmp_path: Path) -> None:
    config = config_of(tmp_path, model)
    program = zero_program(config, [1], 0)
    read = native_counts(program, STEPS).keys()
    totals, operations = program.shape_totals, operations_of(config, [1], 0)
    moved = {(each.name, each.computes) for each in operations if each.moves.of(totals)}
    assert {(name, format) for name, format, *_ in program.profile()} == read | moved
    assert program.shape_totals == (3, 5, 200, 4, 0, 0)


@pytest.mark.parametrize("kv", ["bf16", "int8"])
@pytest.mark.parametrize("family", DENSE)
def test_a_dense_model_is_counted_as_the_program_counts_it(family: str, kv: KvCacheDtype, tmp_path: Path) -> None:
    config, settings = config_of(tmp_path, DENSE[family]), ModelSettings(kv_cache_dtype=kv)
    program = zero_program(config, [1], 0, settings)
    assert counted(operations_of(config, [1], 0, settings), STEPS) == native_counts(program, STEPS)


@pytest.mark.parametrize("activations", ["bf16", "int8"])
@pytest.mark.parametrize("format", ["int8", "int4", "fp8"])
def test_every_weight_format_is_counted_as_the_program_counts_it(format: Any, activations: Any, tmp_path: Path) -> None:
    settings = ModelSettings(formats=WeightFormats(format, format, activations))
    config = config_of(tmp_path, {})
    program = zero_program(config, [1], 0, settings)
    assert counted(operations_of(config, [1], 0, settings), STEPS) == native_counts(program, STEPS)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("model", [{}, HYBRID], ids=["dense", "hybrid"])
def test_each_of_two_ranks_is_counted_as_its_program_counts_it(
    model: dict[str, Any], rank: int, tmp_path: Path
) -> None:
    config, shares = config_of(tmp_path, model), [2, 1]
    program = zero_program(config, shares, rank)
    assert counted(operations_of(config, shares, rank), STEPS) == native_counts(program, STEPS)


@pytest.mark.parametrize("format", [None, "int8"])
@pytest.mark.parametrize("model", [MOE, LATENT], ids=["heads", "latent"])
def test_experts_of_one_token_are_counted_as_the_program_counts_them(
    model: dict[str, Any], format: Any, tmp_path: Path
) -> None:
    settings = ModelSettings(formats=WeightFormats(format))
    config = config_of(tmp_path, model)
    steps = [[(0, start, 1, True)] for start in range(3)]
    native = native_counts(zero_program(config, [1], 0, settings), steps)
    assert_alike(counted(operations_of(config, [1], 0, settings), steps), native)


@pytest.mark.parametrize("shares", [[1], [2, 1]], ids=["one rank", "the second of two"])
@pytest.mark.parametrize(
    "model",
    [MOE | {"num_experts_per_tok": 6}, LATENT | {"num_experts_per_tok": 8}, MXFP4],
    ids=["heads", "latent", "mxfp4"],
)
def test_a_mixture_whose_tokens_go_to_every_expert_is_counted_as_the_program_counts_it(
    model: dict[str, Any], shares: list[int], tmp_path: Path
) -> None:
    config, rank = config_of(tmp_path, model), len(shares) - 1
    native = native_counts(zero_program(config, shares, rank), STEPS)
    assert_alike(counted(operations_of(config, shares, rank), STEPS), native)


@pytest.mark.parametrize("rank", [0, 1])
def test_whole_experts_of_a_rank_are_counted_as_its_program_counts_them(rank: int, tmp_path: Path) -> None:
    config = config_of(tmp_path, MOE | {"num_experts_per_tok": 6})
    settings = ModelSettings(expert_parallel=True)
    native = native_counts(zero_program(config, [1, 1], rank, settings), STEPS)
    operations = operations_of(config, [1, 1], rank, settings)
    assert_alike(counted(operations, STEPS), native)


def assert_alike(found: Counts, native: Counts) -> None:
    """But for rounding: what experts come to is an expected value."""
    assert found.keys() == native.keys()
    for key, amounts in found.items():
        assert amounts == pytest.approx(native[key], rel=1e-12), key
