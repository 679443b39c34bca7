"""One rank's part of a model, packed for its kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # The families name these types, and the front end reads configurations without the native modules.
    from numaserve.kernels import PackedMatrix, RopeTable, Vector
    from numaserve.workers.weights.sharding import Shard


@dataclass(frozen=True)
class DenseMlp:
    """The rank's columns of a gated MLP."""

    gate_up: PackedMatrix  # panels of 16 rows, alternately gate and up; padded to whole tiles of the MLP's columns
    down: PackedMatrix  # [hidden, the rank's columns of the MLP]

    @property
    def matrices(self) -> list[PackedMatrix]:
        """All matrices."""
        return [self.gate_up, self.down]


@dataclass(frozen=True)
class MoeWeights:
    """The rank's part of a layer's experts: some columns of each, or with expert parallelism all of some, which may be
    none. `gate_up` of all routed ones are of one format, and so are `down`; the shared one has its own."""

    router: PackedMatrix  # bf16 [experts, and one row for the shared expert's gate where it has one, hidden], whole
    correction_bias: Vector | None  # [experts]
    experts: range  # which of the model's this rank holds
    gate_up: tuple[PackedMatrix, ...]  # of each of them, as in `DenseMlp`
    down: tuple[PackedMatrix, ...]
    shared: DenseMlp | None
    router_bias: Vector | None = None  # [experts]
    gate_up_bias: Vector | None = None  # [its experts, padded rows of `gate_up`]
    down_bias: Vector | None = None  # [its experts, padded hidden]; of the ranks that divide an expert one has it

    @property
    def matrices(self) -> list[PackedMatrix]:
        """All matrices, in the order in which they are loaded."""
        experts = [matrix for pair in zip(self.gate_up, self.down, strict=True) for matrix in pair]
        return [self.router, *experts, *([] if self.shared is None else self.shared.matrices)]


@dataclass(frozen=True)
class MlaWeights:
    """Multi-head latent attention. What is of heads is of the rank's."""

    # All that reads the hidden state, in one product: [latent, the rotated key in halves, then the queries' latent or,
    # where these have none, the queries, hidden]. With a latent of queries the rank has some of the rows.
    qkv_a: PackedMatrix
    kv_a_norm: Vector
    q_a_norm: Vector | None  # of the queries' latent
    q_b: PackedMatrix | None  # [heads * query, that latent]: of each the part without positions, then rotated halves
    w_uk: PackedMatrix  # [heads * latent, part without positions]
    w_uv: PackedMatrix  # [heads * value, latent]

    @property
    def matrices(self) -> list[PackedMatrix]:
        """All matrices, in the order in which they are loaded."""
        return [self.qkv_a, *([] if self.q_b is None else [self.q_b]), self.w_uk, self.w_uv]


@dataclass(frozen=True)
class LayerWeights:
    """One decoder layer; matrices are [out features, in features] of this rank, vectors are whole unless noted."""

    input_norm: Vector
    qkv: PackedMatrix | MlaWeights  # the rank's q heads, then its k heads, then its v heads
    qkv_bias: Vector | None  # in the same order
    q_norm: Vector | None  # [head_dim]
    k_norm: Vector | None  # [head_dim]
    sinks: Vector | None  # [the rank's q heads]
    o: PackedMatrix  # [hidden, the rank's q heads]
    o_bias: Vector | None
    post_attention_norm: Vector | None
    mlp_norm: Vector
    mlp: DenseMlp | MoeWeights
    post_mlp_norm: Vector | None


@dataclass(frozen=True)
class Weights:
    """A rank's weights. With tied embeddings in one format `lm_head` is the same object as `embedding`."""

    shard: Shard
    embedding: PackedMatrix  # [the rank's rows of the vocabulary, hidden]
    layers: tuple[LayerWeights, ...]
    ropes: tuple[RopeTable, ...]  # one for each layer; layers of a kind share theirs
    final_norm: Vector
    lm_head: PackedMatrix  # [the rank's rows of the vocabulary, hidden]

    @property
    def matrices(self) -> list[PackedMatrix]:
        """All matrices, each once, in the order in which they are loaded."""
        found = [self.embedding]
        for layer in self.layers:
            qkv = layer.qkv.matrices if isinstance(layer.qkv, MlaWeights) else [layer.qkv]
            found += [*qkv, layer.o, *layer.mlp.matrices]
        return found if self.lm_head is self.embedding else [*found, self.lm_head]
