"""Which part of each tensor a rank owns. Pure functions of the model's configuration and the ranks' weights.

A rank's *weight* is its number of cores. Attention is divided by KV head, each with its group of query heads; the MLP,
and every expert likewise, in units of 32 columns, the kernels' tiles, or of a checkpoint's groups; the vocabulary in
units of 16 rows; what makes latents, of tokens and of queries, in units of 32. Fewer KV heads than ranks: a KV head is
held by several ranks, which divide its query heads. With *expert parallelism* routed experts are not cut: each is on
one rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from numaserve.workers.errors import OperatorError
from numaserve.workers.models.family import MlpNames
from numaserve.workers.models.registry import FAMILIES
from numaserve.workers.models.spec import MlaConfig, ModelConfig
from numaserve.workers.protocol import PAGE_SIZE
from numaserve.workers.settings import DEFAULT_SETTINGS, ModelSettings
from numaserve.workers.weights.formats import (
    BF16,
    MatrixFormat,
    MlaFormats,
    MlpFormats,
    MoeFormats,
    cut_of,
    has_own_lm_head,
    layer_formats,
    lm_head_format,
)

TILE_ROWS = 16
TILE_COLUMNS = 32
INT8_TILE_COLUMNS = 64
MATRIX_PAD = 32  # rows and columns of packed matrices are padded to this
BF16_BYTES = 2


@dataclass(frozen=True)
class Shard:
    """What rank `rank` of `world_size` owns. Ranges are of the whole model's heads, columns and rows; they may be empty
    where there are more ranks than parts."""

    rank: int
    world_size: int
    q_heads: range
    kv_heads: range
    intermediate: range
    vocab: range
    experts: range = range(0)  # the routed ones of which it has columns
    expert_intermediate: range = range(0)  # of each of them
    shared_intermediate: range = range(0)
    latents: range = range(0)  # of the rows that make latents, of a token first, then of its queries


def round_up(value: int, unit: int) -> int:
    """The smallest multiple of `unit` that is at least `value`."""
    return -(-value // unit) * unit


def apportion(count: int, weights: Sequence[int], minimum: int = 0) -> list[int]:
    """Divide `count` indivisible things in proportion to `weights` (largest remainder, the lower rank first), each part
    at least `minimum` where `count` allows it."""
    if not weights or min(weights) <= 0:
        raise ValueError("weights must be positive")
    if count < minimum * len(weights):
        minimum = 0
    total = sum(weights)
    # Remainders are compared as integers: floats would make the split depend on rounding.
    parts = [max(minimum, count * weight // total) for weight in weights]
    while (missing := count - sum(parts)) != 0:
        step = 1 if missing > 0 else -1
        candidates = [rank for rank, part in enumerate(parts) if step > 0 or part > minimum]
        best = max(candidates, key=lambda rank: (step * (count * weights[rank] - parts[rank] * total), -step * rank))
        parts[best] += step
    return parts


def split(total: int, weights: Sequence[int], unit: int) -> list[range]:
    """Contiguous ranges that cover `range(total)`, cut at multiples of `unit`, in proportion to `weights`."""
    return _ranges(apportion(-(-total // unit), weights), unit, total)


def split_heads(num_qo_heads: int, num_kv_heads: int, weights: Sequence[int]) -> list[tuple[range, range]]:
    """Each rank's query heads and KV heads. Both are empty on a rank only where there are more ranks than query heads
    to divide."""
    group = num_qo_heads // num_kv_heads
    world = len(weights)
    if num_kv_heads >= world:
        kv_ranges = _ranges(apportion(num_kv_heads, weights, minimum=1), 1, num_kv_heads)
        return [(range(kv.start * group, kv.stop * group), kv) for kv in kv_ranges]
    heads: list[tuple[range, range]] = []
    for kv_head, ranks in enumerate(_ranges(apportion(world, [1] * num_kv_heads), 1, world)):
        parts = apportion(group, [weights[rank] for rank in ranks], minimum=1)
        for q in _ranges(parts, 1, group):
            first = kv_head * group
            heads.append((range(first + q.start, first + q.stop), range(kv_head, kv_head + (1 if q else 0))))
    return heads


def make_shard(
    config: ModelConfig, weights: Sequence[int], rank: int, settings: ModelSettings = DEFAULT_SETTINGS
) -> Shard:
    """The part of the model that `rank` owns; `weights` has one entry per rank."""
    q_heads, kv_heads = split_heads(config.num_qo_heads, config.num_kv_heads, weights)[rank]
    family, moe = FAMILIES[config.family], config.moe

    def columns(total: int, *mlps: MlpNames) -> range:
        cut = cut_of(config, len(weights), total, [mlp.down for mlp in mlps])
        return split(total, weights, cut)[rank]

    experts = expert_columns = shared = range(0)
    if moe is not None:
        shared = columns(moe.shared_intermediate_size, family.moe_names.shared_mlp)
        if settings.expert_parallel:
            experts, expert_columns = split(moe.num_experts, weights, 1)[rank], range(moe.intermediate_size)
        else:
            experts = range(moe.num_experts)
            expert_columns = columns(moe.intermediate_size, *family.moe_names.routed(moe.num_experts))
    return Shard(
        rank=rank,
        world_size=len(weights),
        q_heads=q_heads,
        kv_heads=kv_heads,
        intermediate=columns(config.intermediate_size, family.names.mlp),
        vocab=split(config.vocab_size, weights, TILE_ROWS)[rank],
        experts=experts,
        expert_intermediate=expert_columns,
        shared_intermediate=shared,
        latents=_latent_rows(config.mla, weights, rank),
    )


def _latent_rows(mla: MlaConfig | None, weights: Sequence[int], rank: int) -> range:
    """Queries without a latent are of heads, and what is left is narrow: every rank has it all."""
    if mla is None:
        return range(0)
    if mla.q_lora_rank is None:
        return range(mla.cache_dim)
    return split(mla.cache_dim + mla.q_lora_rank, weights, MATRIX_PAD)[rank]


def matrix_bytes(n: int, k: int, made: MatrixFormat = BF16) -> int:
    """Memory of a packed matrix of n output and k input features, padded to whole tiles and groups.

    int8 has a scale and a correction, 4 bytes each, for each output feature; the formats with groups have a scale, and
    maybe an offset, of 2 bytes for each output feature and group, and 4 bytes more for each output feature; fp8 has a
    scale of 4 bytes for each output feature and group, mxfp4 of one byte.
    """
    n, group = round_up(n, MATRIX_PAD), made.group
    if made.format == "bf16":
        return n * round_up(k, MATRIX_PAD) * BF16_BYTES
    if made.format == "int8":
        return n * (round_up(k, INT8_TILE_COLUMNS) + 8)
    groups = -(-round_up(k, MATRIX_PAD) // group)
    if made.format == "fp8":
        return n * groups * (group + 4)
    if made.format == "mxfp4":
        return n * groups * (group // 2 + 1)
    codes = group // 2 if made.format == "int4" else group
    return n * (groups * (codes + (2 if made.offsets == "none" else 4)) + 4)


def weight_bytes(
    config: ModelConfig, weights: Sequence[int], rank: int, settings: ModelSettings = DEFAULT_SETTINGS
) -> int:
    """Memory of the packed matrices of one rank; norms and biases, a few kB per layer, are left out. Raises
    `OperatorError` where the checkpoint cannot be had in the formats asked for."""
    shard, formats = make_shard(config, weights, rank, settings), settings.formats
    hidden = config.hidden_size
    q_columns = len(shard.q_heads) * config.head_dim
    total = matrix_bytes(len(shard.vocab), hidden)
    for layer in range(config.num_layers):
        made = layer_formats(config, formats, shard, layer)
        total += (
            _attention_bytes(config, shard, made.qkv)
            + matrix_bytes(hidden, q_columns, made.o)
            + _mlp_bytes(config, shard, made.mlp)
        )
    if has_own_lm_head(config, formats):
        total += matrix_bytes(len(shard.vocab), hidden, lm_head_format(config, formats))
    return total


def _attention_bytes(config: ModelConfig, shard: Shard, made: MatrixFormat | MlaFormats) -> int:
    hidden, heads, mla = config.hidden_size, len(shard.q_heads), config.mla
    if mla is None or isinstance(made, MatrixFormat):
        assert isinstance(made, MatrixFormat)  # noqa: S101  nothing is latent
        return matrix_bytes((heads + 2 * len(shard.kv_heads)) * config.head_dim, hidden, made)
    queries, rank = heads * mla.query_dim, mla.q_lora_rank
    total = matrix_bytes(heads * mla.kv_lora_rank, mla.nope_dim, made.w_uk)
    total += matrix_bytes(heads * config.head_dim, mla.kv_lora_rank, made.w_uv)
    total += matrix_bytes(len(shard.latents) + (queries if rank is None else 0), hidden, made.qkv_a)
    return total + (matrix_bytes(queries, rank, made.q_b) if rank is not None and made.q_b is not None else 0)


def _mlp_bytes(config: ModelConfig, shard: Shard, made: MlpFormats | MoeFormats) -> int:
    def gated(columns: range, made: MlpFormats) -> int:
        gate_up = matrix_bytes(2 * round_up(len(columns), TILE_COLUMNS), config.hidden_size, made.gate_up)
        return gate_up + matrix_bytes(config.hidden_size, len(columns), made.down)

    if isinstance(made, MlpFormats):
        return gated(shard.intermediate, made)
    moe = made.moe
    # The shared expert's gate is one more row of the router.
    total = matrix_bytes(moe.num_experts + (1 if moe.shared_gate else 0), config.hidden_size)
    total += len(shard.experts) * gated(shard.expert_intermediate, made.experts)
    return total + gated(shard.shared_intermediate, made.shared) if moe.shared_intermediate_size else total


def kv_bytes_per_page(
    config: ModelConfig, weights: Sequence[int], rank: int, settings: ModelSettings = DEFAULT_SETTINGS
) -> int:
    """Memory of one page of KV cache on one rank: keys and values of `PAGE_SIZE` tokens in all layers, each head padded
    to whole tiles. int8 and fp8_e4m3 are a byte a value and a bf16 scale for each token's key and value of a head.
    A latent is key and value at once. Raises `OperatorError` for a latent in another dtype than bf16."""
    kv_heads, dtype = len(make_shard(config, weights, rank).kv_heads), settings.kv_cache_dtype
    if config.mla is not None:
        if dtype != "bf16":
            raise OperatorError(f"--kv-cache-dtype {dtype}: {config.architecture} caches latents, in bf16 only")
        return config.num_layers * kv_heads * PAGE_SIZE * config.mla.cache_dim * BF16_BYTES
    head = round_up(config.head_dim, TILE_COLUMNS)
    head_bytes = head * BF16_BYTES if dtype == "bf16" else head + BF16_BYTES
    return 2 * config.num_layers * kv_heads * PAGE_SIZE * head_bytes


def _ranges(parts: Sequence[int], unit: int, total: int) -> list[range]:
    ranges: list[range] = []
    start = 0
    for part in parts:
        stop = start + part
        ranges.append(range(min(start * unit, total), min(stop * unit, total)))
        start = stop
    return ranges
