"""What a model family is: the shape that every file of this package fills in."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.spec import ModelConfig, MoeConfig

if TYPE_CHECKING:
    # The front end reads configurations and must not need the native modules for it.
    from numaserve.workers.program.builder import ProgramBuilder
    from numaserve.workers.weights.weights import Weights


@dataclass(frozen=True)
class MlpNames:
    """Of the matrices of one gated MLP. Where `up` is `gate`, that tensor holds the rows of gate above those of up, or
    with `interleaved` a row of either in turn."""

    gate: str
    up: str
    down: str
    interleaved: bool = False


@dataclass(frozen=True)
class LayerNames:
    """Hugging Face's tensor names within a layer, without `.weight` and `.bias`.

    Where several have the same name, that tensor holds them below each other in the order of these fields.
    """

    input_norm: str = "input_layernorm"
    q: str = "self_attn.q_proj"
    k: str = "self_attn.k_proj"
    v: str = "self_attn.v_proj"
    o: str = "self_attn.o_proj"
    q_norm: str = "self_attn.q_norm"
    k_norm: str = "self_attn.k_norm"
    sinks: str = "self_attn.sinks"  # the whole name
    mlp_norm: str = "post_attention_layernorm"
    gate: str = "mlp.gate_proj"
    up: str = "mlp.up_proj"
    down: str = "mlp.down_proj"
    post_attention_norm: str = ""  # "": the family has none
    post_mlp_norm: str = ""

    @property
    def mlp(self) -> MlpNames:
        """Of a dense layer."""
        return MlpNames(self.gate, self.up, self.down)


@dataclass(frozen=True)
class MlaNames:
    """The same of multi-head latent attention, but for what `LayerNames` has too."""

    q_a: str = "self_attn.q_a_proj"
    q_a_norm: str = "self_attn.q_a_layernorm"
    q_b: str = "self_attn.q_b_proj"  # where queries have a latent
    kv_a: str = "self_attn.kv_a_proj_with_mqa"
    kv_a_norm: str = "self_attn.kv_a_layernorm"
    kv_b: str = "self_attn.kv_b_proj"
    k_b: str = "self_attn.k_b_proj"  # the two instead of it where they are apart
    v_b: str = "self_attn.v_b_proj"


@dataclass(frozen=True)
class MoeNames:
    """The same of a layer that is a mixture of experts; expert 3 has its matrices below `experts`.3.

    `fused`: the checkpoint has those of all experts in one tensor, see `weights.fused_experts`.
    """

    router: str = "mlp.gate"
    correction_bias: str = "mlp.gate.e_score_correction_bias"  # the whole name
    experts: str = "mlp.experts"
    shared: str = "mlp.shared_expert"
    shared_gate: str = "mlp.shared_expert_gate"
    # Within an expert.
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    fused: bool = False
    interleaved: bool = False  # see MlpNames

    def routed(self, count: int) -> tuple[MlpNames, ...]:
        """Of the first `count` routed experts."""
        return _routed(self, count)

    @property
    def shared_mlp(self) -> MlpNames:
        """Of the shared experts, which are one MLP."""
        return self.below(self.shared)

    def below(self, module: str) -> MlpNames:
        """Of the expert that is called `module`."""
        gate, up, down = (f"{module}.{name}" for name in (self.gate, self.up, self.down))
        return MlpNames(gate, up, down, self.interleaved)


@functools.lru_cache(maxsize=16)
def _routed(names: MoeNames, count: int) -> tuple[MlpNames, ...]:
    """Made once: every layer has the same, and a large model ten thousand experts."""
    return tuple(names.below(f"{names.experts}.{index}") for index in range(count))


@dataclass(frozen=True)
class Family:
    """One model family.

    `configure(fields, architecture)` maps config.json; `forward(builder, config, weights)` appends the forward pass to
    a program.
    """

    name: str
    architectures: tuple[str, ...]
    gguf_architecture: str | None  # general.architecture; None: its GGUF files have another name
    configure: Callable[[Fields, str], ModelConfig]
    forward: Callable[[ProgramBuilder, ModelConfig, Weights], None]
    names: LayerNames = field(default_factory=LayerNames)
    mla_names: MlaNames = field(default_factory=MlaNames)
    moe_names: MoeNames = field(default_factory=MoeNames)
    # What may stand before `layers.0. ...`: multimodal checkpoints nest their language model.
    prefixes: tuple[str, ...] = ("model.",)
    # Parts of a multimodal checkpoint that text does not need.
    ignored_prefixes: tuple[str, ...] = ()

    def attention_matrices(self, config: ModelConfig) -> list[tuple[str, tuple[int, int]]]:
        """The matrices that make queries, keys and values in a layer, with their shapes. Those of one name lie below
        each other in one tensor."""
        hidden, heads = config.hidden_size, config.num_qo_heads
        if config.mla is None:
            q_rows, kv_rows = heads * config.head_dim, config.num_kv_heads * config.head_dim
            names = ((self.names.q, q_rows), (self.names.k, kv_rows), (self.names.v, kv_rows))
            return [(name, (rows, hidden)) for name, rows in names]
        mla, names_of = config.mla, self.mla_names
        rank, rows = mla.q_lora_rank, heads * mla.query_dim
        queries = [(self.names.q, (rows, hidden))]
        if rank is not None:
            queries = [(names_of.q_a, (rank, hidden)), (names_of.q_b, (rows, rank))]
        latent, value = mla.kv_lora_rank, config.head_dim
        expanded = [(names_of.kv_b, (heads * (mla.nope_dim + value), latent))]
        if mla.split_kv_b:
            expanded = [(names_of.k_b, (heads * latent, mla.nope_dim)), (names_of.v_b, (heads * value, latent))]
        return [*queries, (names_of.kv_a, (mla.cache_dim, hidden)), *expanded]

    def mlps(self, config: ModelConfig, moe: MoeConfig | None) -> list[tuple[MlpNames, int]]:
        """The gated MLPs of a layer, with their intermediate sizes: one, or with `moe` those of all experts."""
        if moe is None:
            return [(self.names.mlp, config.intermediate_size)]
        found = [(names, moe.intermediate_size) for names in self.moe_names.routed(moe.num_experts)]
        if moe.shared_intermediate_size:
            found.append((self.moe_names.shared_mlp, moe.shared_intermediate_size))
        return found
