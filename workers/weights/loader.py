"""Packs one rank's part of a checkpoint. Only the rank's own rows and columns of the mapped file are ever touched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from numaserve.kernels import PackedMatrix, RopeTable, Team, Vector
from numaserve.workers.errors import OperatorError
from numaserve.workers.models.family import LayerNames
from numaserve.workers.models.registry import FAMILIES
from numaserve.workers.models.rope import rope_tables
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.protocol import BF16_WEIGHTS, WeightFormat, WeightFormats
from numaserve.workers.weights.convert import as_float32, with_whole_blocks
from numaserve.workers.weights.gguf_source import GGUFSource
from numaserve.workers.weights.sharding import TILE_COLUMNS, Shard, has_own_lm_head, round_up
from numaserve.workers.weights.source import RawTensor, TensorSource
from numaserve.workers.weights.tensors import check_tensors, find_prefix, lm_head_name
from numaserve.workers.weights.weights import LayerWeights, Weights

Rows = npt.NDArray[np.int32]


def open_source(path: Path, config: ModelConfig) -> TensorSource:
    """The tensors of the model folder or .gguf file at `path`. Raises `OperatorError` when it cannot be read."""
    if path.is_dir():
        # torch, which that module needs, takes a second to import.
        from numaserve.workers.weights.safetensors_source import SafetensorsSource  # noqa: PLC0415

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
    formats: WeightFormats = BF16_WEIGHTS,
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
    loader = _Loader(source, config, family.names, formats, shard, team, report, stored)
    return loader.load(prefix, positions)


@dataclass
class _Loader:
    source: TensorSource
    config: ModelConfig
    names: LayerNames
    formats: WeightFormats
    shard: Shard
    team: Team
    report: Callable[[int], None]
    stored: bool
    done: int = 0

    def load(self, prefix: str, positions: int) -> Weights:
        config = self.config
        embedding = self._vocabulary(f"{prefix}embed_tokens.weight")
        layers = tuple(self._layer(f"{prefix}layers.{index}.") for index in range(config.num_layers))
        lm_head = embedding
        if has_own_lm_head(config, self.formats):
            tied = config.tie_word_embeddings
            name = f"{prefix}embed_tokens.weight" if tied else lm_head_name(self.source.names(), prefix)
            lm_head = self._vocabulary(name, self.formats.lm_head)
        configs = [config.rope_of(layer) for layer in range(config.num_layers)]
        tables = {rope: RopeTable(*rope_tables(rope, positions)) for rope in dict.fromkeys(configs)}
        return Weights(
            shard=self.shard,
            embedding=embedding,
            layers=layers,
            ropes=tuple(tables[rope] for rope in configs),
            final_norm=self._norm(f"{prefix}norm"),
            lm_head=lm_head,
        )

    def _layer(self, at: str) -> LayerWeights:
        config, names = self.config, self.names
        return LayerWeights(
            input_norm=self._norm(at + names.input_norm),
            qkv=self._qkv(at),
            qkv_bias=self._qkv_bias(at) if config.qkv_bias else None,
            q_norm=self._norm(at + names.q_norm) if config.qk_norm else None,
            k_norm=self._norm(at + names.k_norm) if config.qk_norm else None,
            o=self._columns(f"{at}{names.o}.weight", self.shard.q_heads, config.head_dim),
            o_bias=self._vector(f"{at}{names.o}.bias") if config.attention_output_bias else None,
            post_attention_norm=self._norm(at + names.post_attention_norm) if config.post_norms else None,
            mlp_norm=self._norm(at + names.mlp_norm),
            gate_up=self._gate_up(at),
            down=self._columns(f"{at}{names.down}.weight", self.shard.intermediate, 1),
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

    def _qkv(self, at: str) -> PackedMatrix:
        parts = self._qkv_rows()
        matrix = self._linear(sum(len(rows) for _, rows in parts), self.config.hidden_size)
        row = 0
        for name, rows in parts:
            self._pack(matrix, self.source.tensor(f"{at}{name}.weight"), rows, dst_row=row)
            row += len(rows)
        return self._packed(matrix)

    def _qkv_bias(self, at: str) -> Vector:
        parts = [as_float32(self.source.tensor(f"{at}{name}.bias"))[rows] for name, rows in self._qkv_rows()]
        return Vector(np.concatenate(parts))

    def _gate_up(self, at: str) -> PackedMatrix:
        names, inter = self.names, self.shard.intermediate
        # Both halves fill whole tiles, so that the padded columns of the product are written, as zeros.
        matrix = self._linear(2 * round_up(len(inter), TILE_COLUMNS), self.config.hidden_size)
        rows = np.arange(inter.start, inter.stop, dtype=np.int32)
        below = self.config.intermediate_size if names.up == names.gate else 0
        for offset, (name, chosen) in enumerate(((names.gate, rows), (names.up, rows + np.int32(below)))):
            self._pack(matrix, self.source.tensor(f"{at}{name}.weight"), chosen, panel_stride=2, panel_offset=offset)
        return self._packed(matrix)

    def _columns(self, name: str, parts: range, width: int) -> PackedMatrix:
        """All rows of a tensor, and of its columns those of `parts`, each `width` wide."""
        hidden = self.config.hidden_size
        matrix = self._linear(hidden, len(parts) * width)
        rows = np.arange(hidden, dtype=np.int32)
        self._pack(matrix, self.source.tensor(name), rows, first_col=parts.start * width)
        return self._packed(matrix)

    def _linear(self, n: int, k: int) -> PackedMatrix:
        return PackedMatrix(n, k, self.formats.linear)

    def _vocabulary(self, name: str, format: WeightFormat = "bf16") -> PackedMatrix:
        vocab = self.shard.vocab
        matrix = PackedMatrix(len(vocab), self.config.hidden_size, format)
        self._pack(matrix, self.source.tensor(name), np.arange(vocab.start, vocab.stop, dtype=np.int32))
        return self._packed(matrix)

    def _norm(self, name: str) -> Vector:
        values = as_float32(self.source.tensor(f"{name}.weight"))
        return Vector(values + np.float32(1) if self.config.norm_plus_one else values)

    def _vector(self, name: str) -> Vector:
        return Vector(as_float32(self.source.tensor(name)))

    def _pack(
        self,
        matrix: PackedMatrix,
        tensor: RawTensor,
        rows: Rows,
        *,
        dst_row: int = 0,
        first_col: int = 0,
        panel_stride: int = 1,
        panel_offset: int = 0,
    ) -> None:
        if self.stored or matrix.k == 0 or len(rows) == 0:  # a rank without heads has nothing to read
            return
        tensor = with_whole_blocks(tensor, first_col)
        try:
            matrix.pack(
                self.team,
                tensor.data,
                tensor.dtype,
                source_cols=tensor.shape[1],
                rows=rows,
                dst_row=dst_row,
                first_col=first_col,
                panel_stride=panel_stride,
                panel_offset=panel_offset,
            )
        except ValueError as error:
            raise OperatorError(
                f"tensor {tensor.name} cannot be packed ({error}); fetch the checkpoint again"
            ) from error

    def _packed(self, matrix: PackedMatrix) -> PackedMatrix:
        if not self.stored:
            self.done += matrix.nbytes
            self.report(self.done)
        return matrix


def head_rows(heads: range, head_dim: int, interleaved: bool) -> Rows:
    """The rows of `heads` in a q, k or v tensor, in the kernels' order: within a head, the first halves of all rotated
    pairs, then the second halves. `interleaved` tensors have each pair side by side instead."""
    within = np.arange(head_dim, dtype=np.int32)
    if interleaved:
        within = within.reshape(head_dim // 2, 2).T.reshape(head_dim)
    starts = np.arange(heads.start, heads.stop, dtype=np.int32) * np.int32(head_dim)
    return (starts[:, None] + within).reshape(-1)
