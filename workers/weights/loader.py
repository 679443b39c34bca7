"""Packs one rank's part of a checkpoint. Only the rank's own rows and columns of the mapped file are ever touched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numaserve.kernels import PackedMatrix, RopeTable, Team, Vector
from numaserve.workers.models.family import LayerNames
from numaserve.workers.models.registry import FAMILIES
from numaserve.workers.models.rope import rope_tables
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.protocol import AS_PUBLISHED, WeightFormats
from numaserve.workers.weights.convert import Floats, as_float32
from numaserve.workers.weights.formats import (
    BF16,
    EMBEDDING,
    LM_HEAD,
    MatrixFormat,
    has_own_lm_head,
    layer_formats,
    lm_head_format,
)
from numaserve.workers.weights.gguf_source import GGUFSource
from numaserve.workers.weights.packing import Packer, Place, Rows
from numaserve.workers.weights.safetensors_source import SafetensorsSource
from numaserve.workers.weights.sharding import TILE_COLUMNS, Shard, round_up
from numaserve.workers.weights.source import TensorSource
from numaserve.workers.weights.tensors import Shape, check_tensors, find_prefix, layer_shapes, lm_head_name
from numaserve.workers.weights.weights import LayerWeights, Weights


def open_source(path: Path, config: ModelConfig) -> TensorSource:
    """The tensors of the model folder or .gguf file at `path`. Raises `OperatorError` when it cannot be read."""
    if path.is_dir():
        return SafetensorsSource(path)
    return GGUFSource(path, FAMILIES[config.family])


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
    packer = None if stored else Packer(source, team)
    shapes = layer_shapes(config, family)
    return _Loader(source, config, family.names, formats, shard, packer, report, prefix, shapes).load(positions)


@dataclass
class _Loader:
    source: TensorSource
    config: ModelConfig
    names: LayerNames
    formats: WeightFormats
    shard: Shard
    packer: Packer | None  # None: matrices are made, and filled by others
    report: Callable[[int], None]
    prefix: str
    shapes: dict[str, Shape]  # of a layer's tensors
    done: int = 0

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
        config, names, at = self.config, self.names, f"layers.{index}."
        made = layer_formats(config, self.formats, self.shard, index)
        return LayerWeights(
            input_norm=self._norm(at + names.input_norm),
            qkv=self._qkv(at, made.qkv),
            qkv_bias=self._qkv_bias(at) if config.qkv_bias else None,
            q_norm=self._norm(at + names.q_norm) if config.qk_norm else None,
            k_norm=self._norm(at + names.k_norm) if config.qk_norm else None,
            o=self._columns(at, names.o, self.shard.q_heads, config.head_dim, made.o),
            o_bias=self._vector(f"{at}{names.o}.bias") if config.attention_output_bias else None,
            post_attention_norm=self._norm(at + names.post_attention_norm) if config.post_norms else None,
            mlp_norm=self._norm(at + names.mlp_norm),
            gate_up=self._gate_up(at, made.gate_up),
            down=self._columns(at, names.down, self.shard.intermediate, 1, made.down),
            post_mlp_norm=self._norm(at + names.post_mlp_norm) if config.post_norms else None,
        )

    def _qkv_rows(self) -> list[tuple[str, Rows]]:
        """The tensors that hold the rank's q, k and v heads, and their rows there in the kernels' order."""
        config, names, shard = self.config, self.names, self.shard
        interleaved = self.source.interleaved_rope
        q = head_rows(shard.q_heads, config.head_dim, interleaved)
        k = head_rows(shard.kv_heads, config.head_dim, interleaved)
        v = head_rows(shard.kv_heads, config.head_dim, False)
        if names.k == names.q:
            k += config.num_qo_heads * config.head_dim
            v += (config.num_qo_heads + config.num_kv_heads) * config.head_dim
        return [(names.q, q), (names.k, k), (names.v, v)]

    def _qkv(self, at: str, made: MatrixFormat) -> PackedMatrix:
        parts = self._qkv_rows()
        matrix = _make(sum(len(rows) for _, rows in parts), self.config.hidden_size, made)
        row = 0
        for name, rows in parts:
            self._pack(matrix, at, name, rows, Place(dst_row=row))
            row += len(rows)
        return self._packed(matrix)

    def _qkv_bias(self, at: str) -> Vector:
        parts = [self._values(f"{at}{name}.bias")[rows] for name, rows in self._qkv_rows()]
        return Vector(np.concatenate(parts))

    def _gate_up(self, at: str, made: MatrixFormat) -> PackedMatrix:
        names, inter = self.names, self.shard.intermediate
        # Both halves fill whole tiles, so that the padded columns of the product are written, as zeros.
        matrix = _make(2 * round_up(len(inter), TILE_COLUMNS), self.config.hidden_size, made)
        rows = np.arange(inter.start, inter.stop, dtype=np.int32)
        below = self.config.intermediate_size if names.up == names.gate else 0
        for offset, (name, chosen) in enumerate(((names.gate, rows), (names.up, rows + np.int32(below)))):
            self._pack(matrix, at, name, chosen, Place(panel_stride=2, panel_offset=offset))
        return self._packed(matrix)

    def _columns(self, at: str, name: str, parts: range, width: int, made: MatrixFormat) -> PackedMatrix:
        """All rows of a tensor, and of its columns those of `parts`, each `width` wide."""
        hidden = self.config.hidden_size
        matrix = _make(hidden, len(parts) * width, made)
        rows = np.arange(hidden, dtype=np.int32)
        self._pack(matrix, at, name, rows, Place(first_col=parts.start * width))
        return self._packed(matrix)

    def _vocabulary(self, module: str, made: MatrixFormat) -> PackedMatrix:
        config, vocab = self.config, self.shard.vocab
        matrix = _make(len(vocab), config.hidden_size, made)
        if self.packer is not None:
            rows = np.arange(vocab.start, vocab.stop, dtype=np.int32)
            name = lm_head_name(self.source.names(), self.prefix) if module == LM_HEAD else self.prefix + module
            shape = (config.vocab_size, config.hidden_size)
            self.packer.pack(matrix, name, rows, Place(), stored=config.stored.get(module), shape=shape)
        return self._packed(matrix)

    def _norm(self, name: str) -> Vector:
        values = self._values(f"{name}.weight")
        return Vector(values + np.float32(1) if self.config.norm_plus_one else values)

    def _vector(self, name: str) -> Vector:
        return Vector(self._values(name))

    def _values(self, name: str) -> Floats:
        return as_float32(self.source.tensor(self.prefix + name))

    def _pack(self, matrix: PackedMatrix, at: str, name: str, rows: Rows, place: Place) -> None:
        if self.packer is None:
            return
        stored, shape = self.config.stored.get(at + name), self.shapes[f"{name}.weight"]
        self.packer.pack(matrix, self.prefix + at + name, rows, place, stored=stored, shape=(shape[0], shape[1]))

    def _packed(self, matrix: PackedMatrix) -> PackedMatrix:
        if self.packer is not None:
            self.done += matrix.nbytes
            self.report(self.done)
        return matrix


def _make(n: int, k: int, made: MatrixFormat) -> PackedMatrix:
    return PackedMatrix(n, k, made.format, made.group, made.offsets)


def head_rows(heads: range, head_dim: int, interleaved: bool) -> Rows:
    """The rows of `heads` in a q, k or v tensor, in the kernels' order: within a head, the first halves of all rotated
    pairs, then the second halves. `interleaved` tensors have each pair side by side instead."""
    within = np.arange(head_dim, dtype=np.int32)
    if interleaved:
        within = within.reshape(head_dim // 2, 2).T.reshape(head_dim)
    starts = np.arange(heads.start, heads.stop, dtype=np.int32) * np.int32(head_dim)
    return (starts[:, None] + within).reshape(-1)
