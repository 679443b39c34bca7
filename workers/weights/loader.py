"""Packs one rank's part of a checkpoint. Only the rank's own rows and columns of the mapped file are ever touched."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numaserve.kernels import PackedMatrix, RopeTable, Team, Vector
from numaserve.workers.models.family import Family, MlpNames
from numaserve.workers.models.registry import FAMILIES
from numaserve.workers.models.rope import rope_tables
from numaserve.workers.models.spec import MlaConfig, ModelConfig
from numaserve.workers.settings import AS_PUBLISHED, WeightFormats
from numaserve.workers.weights.convert import Floats, as_float32
from numaserve.workers.weights.formats import (
    BF16,
    EMBEDDING,
    LM_HEAD,
    MatrixFormat,
    MlaFormats,
    MlpFormats,
    MoeFormats,
    has_own_lm_head,
    layer_formats,
    lm_head_format,
)
from numaserve.workers.weights.matrices import MatrixMaker, gate_up_rows
from numaserve.workers.weights.packing import Packer, Rows
from numaserve.workers.weights.sharding import MATRIX_PAD, TILE_COLUMNS, TILE_ROWS, Shard, round_up
from numaserve.workers.weights.source import TensorSource
from numaserve.workers.weights.tensors import Shape, check_tensors, find_prefix, layer_shapes, lm_head_name
from numaserve.workers.weights.weights import DenseMlp, LayerWeights, MlaWeights, MoeWeights, Weights


def load_weights(
    source: TensorSource,
    config: ModelConfig,
    shard: Shard,
    team: Team,
    report: Callable[[int], None],
    *,
    positions: int,
    formats: WeightFormats = AS_PUBLISHED,
    stored: bool = False,
) -> Weights:
    """Pack the rank's weights on the team's threads, in `formats`.

    `report` gets the bytes packed so far, `weight_bytes` of them in the end; `positions` is the longest context served.
    With `stored` matrices are made but not filled, and nothing is reported: their bytes are stored elsewhere.
    Raises `OperatorError` when the checkpoint does not fit the configuration.
    """
    family = FAMILIES[config.family]
    prefix = find_prefix(source.names(), family)
    check_tensors(source, config, family, prefix)
    maker = MatrixMaker(config, prefix, _shapes(config), None if stored else Packer(source, team), report)
    return _Loader(source, config, family, formats, shard, maker).load(positions)


def lay_out(
    source: TensorSource,
    config: ModelConfig,
    shard: Shard,
    formats: WeightFormats,
    make: Callable[[int, int, MatrixFormat], PackedMatrix],
) -> Weights:
    """The rank's weights with matrices that `make` makes, and that nobody fills; of `source` only names and vectors are
    asked for. Rope tables have one position."""
    family = FAMILIES[config.family]
    prefix = find_prefix(source.names(), family)
    maker = MatrixMaker(config, prefix, _shapes(config), None, lambda _: None, make)
    return _Loader(source, config, family, formats, shard, maker).load(1)


def _shapes(config: ModelConfig) -> dict[str, Shape]:
    family = FAMILIES[config.family]
    return layer_shapes(config, family, None) | layer_shapes(config, family, config.moe)


@dataclass
class _Loader:
    source: TensorSource
    config: ModelConfig
    family: Family
    formats: WeightFormats
    shard: Shard
    maker: MatrixMaker

    def load(self, positions: int) -> Weights:
        config = self.config
        embedding = self._vocabulary(EMBEDDING, BF16)
        layers = tuple(self._layer(index) for index in range(config.num_layers))
        lm_head = embedding
        if has_own_lm_head(config, self.formats):
            made = lm_head_format(config, self.formats)
            lm_head = self._vocabulary(EMBEDDING if config.tie_word_embeddings else LM_HEAD, made)
        configs = [config.rope_of(layer) for layer in range(config.num_layers)]
        tables = {rope: RopeTable(*rope_tables(rope, positions)) for rope in dict.fromkeys(configs)}
        return Weights(
            shard=self.shard,
            embedding=embedding,
            layers=layers,
            ropes=tuple(tables[rope] for rope in configs),
            final_norm=self._norm("norm"),
            lm_head=lm_head,
        )

    def _layer(self, index: int) -> LayerWeights:
        config, names, at = self.config, self.family.names, f"layers.{index}."
        made = layer_formats(config, self.formats, self.shard, index)
        heads, width = self.shard.q_heads, config.head_dim
        return LayerWeights(
            input_norm=self._norm(at + names.input_norm),
            qkv=self._latent(at, made.qkv)
            if isinstance(made.qkv, MlaFormats)
            else self.maker.rows(at, self._qkv_rows(), made.qkv),
            qkv_bias=self._qkv_bias(at, self._qkv_rows()) if config.qkv_bias else None,
            q_norm=self._norm(at + names.q_norm) if config.qk_norm else None,
            k_norm=self._norm(at + names.k_norm) if config.qk_norm else None,
            sinks=Vector(self._values(at + names.sinks)[heads.start : heads.stop]) if config.attention_sinks else None,
            o=self.maker.columns(at, names.o, range(heads.start * width, heads.stop * width), made.o),
            o_bias=self._vector(f"{at}{names.o}.bias") if config.attention_output_bias else None,
            post_attention_norm=self._norm(at + names.post_attention_norm) if config.post_norms else None,
            mlp_norm=self._norm(at + names.mlp_norm),
            mlp=self._mlp(at, made.mlp),
            post_mlp_norm=self._norm(at + names.post_mlp_norm) if config.post_norms else None,
        )

    def _qkv_rows(self) -> list[tuple[str, Rows]]:
        """The tensors that hold the rank's q, k and v heads, and their rows there in the kernels' order."""
        config, names, shard = self.config, self.family.names, self.shard
        interleaved = self.source.interleaved_rope
        q = head_rows(shard.q_heads, config.head_dim, interleaved)
        k = head_rows(shard.kv_heads, config.head_dim, interleaved)
        v = head_rows(shard.kv_heads, config.head_dim, False)
        if names.k == names.q:
            k += config.num_qo_heads * config.head_dim
            v += (config.num_qo_heads + config.num_kv_heads) * config.head_dim
        return [(names.q, q), (names.k, k), (names.v, v)]

    def _qkv_bias(self, at: str, parts: list[tuple[str, Rows]]) -> Vector:
        return Vector(np.concatenate([self._values(f"{at}{name}.bias")[rows] for name, rows in parts]))

    def _latent(self, at: str, made: MlaFormats) -> MlaWeights:
        mla, names, heads = self.config.mla, self.family.mla_names, self.shard.q_heads
        assert mla is not None  # noqa: S101  it has formats
        token = half_rotated(mla.kv_lora_rank, mla.rope_dim, mla.interleaved)
        query = half_rotated(mla.nope_dim, mla.rope_dim, mla.interleaved)
        queries, rank = _of_heads(heads, mla.query_dim, query), mla.q_lora_rank
        mine, end = self.shard.latents, mla.cache_dim
        parts = [(names.kv_a, token[mine.start : min(mine.stop, end)])]
        if rank is None:
            parts.append((self.family.names.q, queries))
        else:
            parts.append((names.q_a, np.arange(max(mine.start - end, 0), max(mine.stop - end, 0), dtype=np.int32)))
        return MlaWeights(
            qkv_a=self.maker.rows(at, parts, made.qkv_a),
            kv_a_norm=self._norm(at + names.kv_a_norm),
            q_a_norm=None if rank is None else self._norm(at + names.q_a_norm),
            q_b=None if made.q_b is None else self.maker.rows(at, [(names.q_b, queries)], made.q_b),
            w_uk=self._turned_keys(at, mla, made.w_uk),
            w_uv=self._expanded_values(at, mla, made.w_uv),
        )

    def _turned_keys(self, at: str, mla: MlaConfig, made: MatrixFormat) -> PackedMatrix:
        """What would expand latents to keys, of each head turned."""
        names, heads = self.family.mla_names, self.shard.q_heads
        if mla.split_kv_b:
            rows = _of_heads(heads, mla.kv_lora_rank, np.arange(mla.kv_lora_rank, dtype=np.int32))
            return self.maker.rows(at, [(names.k_b, rows)], made)
        height = mla.nope_dim + self.config.head_dim
        starts = range(heads.start * height, heads.stop * height, height)
        return self.maker.turned(at, names.kv_b, starts, mla.nope_dim, made)

    def _expanded_values(self, at: str, mla: MlaConfig, made: MatrixFormat) -> PackedMatrix:
        names, width, nope = self.family.mla_names, self.config.head_dim, 0 if mla.split_kv_b else mla.nope_dim
        values = np.arange(nope, nope + width, dtype=np.int32)
        rows = _of_heads(self.shard.q_heads, nope + width, values)
        return self.maker.rows(at, [(names.v_b if mla.split_kv_b else names.kv_b, rows)], made)

    def _mlp(self, at: str, made: MlpFormats | MoeFormats) -> DenseMlp | MoeWeights:
        if isinstance(made, MlpFormats):
            return self.maker.mlp(at, self.family.names.mlp, self.shard.intermediate, made)
        names, moe = self.family.moe_names, made.moe
        rows = np.arange(moe.num_experts, dtype=np.int32)
        gate = [(names.shared_gate, np.zeros(1, np.int32))] if moe.shared_gate else []
        router = self.maker.rows(at, [(names.router, rows), *gate], BF16)
        columns = self.shard.expert_intermediate
        held = self.shard.experts
        experts = names.routed(moe.num_experts)[held.start : held.stop]
        biased = experts if moe.expert_bias else ()
        routed = [self.maker.mlp(at, each, columns, made.experts) for each in experts]
        shared = None
        if moe.shared_intermediate_size:
            shared = self.maker.mlp(at, names.shared_mlp, self.shard.shared_intermediate, made.shared)
        return MoeWeights(
            router=router,
            correction_bias=self._vector(at + names.correction_bias) if moe.correction_bias else None,
            experts=held,
            gate_up=tuple(each.gate_up for each in routed),
            down=tuple(each.down for each in routed),
            shared=shared,
            router_bias=self._vector(f"{at}{names.router}.bias") if moe.router_bias else None,
            gate_up_bias=_below(self._gate_up_bias(at, each) for each in biased),
            # What the ranks make of an expert is summed: the one that has its first column adds the bias.
            down_bias=_below(self._values(f"{at}{each.down}.bias") for each in biased if 0 in columns),
        )

    def _gate_up_bias(self, at: str, names: MlpNames) -> Floats:
        """Of the rank's columns of an expert, in the order of the rows of the packed matrix."""
        columns = self.shard.expert_intermediate
        panels = np.zeros((round_up(len(columns), TILE_COLUMNS) // TILE_ROWS, 2, TILE_ROWS), np.float32)
        rows = gate_up_rows(names, columns, self.maker.shapes[f"{names.gate}.weight"][0])
        for index, (name, chosen) in enumerate(zip((names.gate, names.up), rows, strict=True)):
            padded = np.zeros(panels[:, index].size, np.float32)
            padded[: len(chosen)] = self._values(f"{at}{name}.bias")[chosen]
            panels[:, index] = padded.reshape(-1, TILE_ROWS)
        return panels.reshape(-1)

    def _vocabulary(self, module: str, made: MatrixFormat) -> PackedMatrix:
        prefix = self.maker.prefix
        tensor = lm_head_name(self.source.names(), prefix) if module == LM_HEAD else prefix + module
        return self.maker.vocabulary(module, tensor, self.shard.vocab, made)

    def _norm(self, name: str) -> Vector:
        values = self._values(f"{name}.weight")
        return Vector(values + np.float32(1) if self.config.norm_plus_one else values)

    def _vector(self, name: str) -> Vector:
        return Vector(self._values(name))

    def _values(self, name: str) -> Floats:
        return as_float32(self.source.tensor(self.maker.prefix + name))


def head_rows(heads: range, head_dim: int, interleaved: bool) -> Rows:
    """The rows of `heads` in a q, k or v tensor, in the kernels' order: within a head, the first halves of all rotated
    pairs, then the second halves. `interleaved` tensors have each pair side by side instead."""
    return _of_heads(heads, head_dim, half_rotated(0, head_dim, interleaved))


def half_rotated(plain: int, rotated: int, interleaved: bool) -> Rows:
    """Rows of which the first `plain` are not rotated, the others in that order."""
    within = np.arange(plain, plain + rotated, dtype=np.int32)
    if interleaved:
        within = within.reshape(rotated // 2, 2).T.reshape(rotated)
    return np.concatenate([np.arange(plain, dtype=np.int32), within])


def _below(biases: Iterable[Floats]) -> Vector | None:
    """Biases one after the other, each padded as the rows of a packed matrix are; None without any."""
    padded = [np.pad(bias, (0, round_up(len(bias), MATRIX_PAD) - len(bias))) for bias in biases]
    return Vector(np.concatenate(padded)) if padded else None


def _of_heads(heads: range, height: int, within: Rows) -> Rows:
    """Rows `within` each of some heads of `height` rows."""
    starts = np.arange(heads.start, heads.stop, dtype=np.int32) * np.int32(height)
    return (starts[:, None] + within).reshape(-1)
