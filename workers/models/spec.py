"""What the rest of the program knows about a model: plain, validated numbers. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from numaserve.workers.models.stored import Stored

Activation = Literal["silu", "gelu_tanh"]
LayerKind = Literal["full", "sliding"]
RopeKind = Literal["default", "linear", "llama3", "yarn", "longrope"]
Scoring = Literal["softmax", "sigmoid"]
GroupScore = Literal["max", "top2"]
ExpertActivation = Literal["silu", "swiglu_oai"]


@dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding of one kind of layer; the scaling fields are those of transformers."""

    kind: RopeKind = "default"
    theta: float = 10000.0
    rotary_dim: int = 0  # how many leading dimensions of a head are rotated
    factor: float = 1.0
    attention_factor: float | None = None  # yarn, longrope; None: derived from the factor
    original_max_position: int = 0  # llama3, yarn, longrope
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    mscale: float | None = None  # yarn
    mscale_all_dim: float | None = None  # yarn
    truncate: bool = True  # yarn
    short_factor: tuple[float, ...] = ()  # longrope, [rotary_dim / 2]
    long_factor: tuple[float, ...] = ()  # longrope, [rotary_dim / 2]


@dataclass(frozen=True)
class MoeConfig:
    """A mixture of experts: which experts a token goes to, and with which weights they are summed."""

    num_experts: int
    top_k: int
    intermediate_size: int  # of one routed expert
    scoring: Scoring = "softmax"
    renormalize: bool = True  # the weights of the chosen experts are divided by their sum
    scale: float = 1.0  # on the weights, after that
    correction_bias: bool = False  # added to the scores for choosing, not for weighing
    num_groups: int = 1  # of experts that follow each other
    top_groups: int = 1  # experts are chosen from these best groups only
    group_score: GroupScore = "max"  # of a group: its best score, or the sum of its two best
    shared_intermediate_size: int = 0  # of all shared experts together
    shared_gate: bool = False  # what they make is multiplied by a sigmoid of its own
    activation: ExpertActivation = "silu"
    swiglu_limit: float = 0.0  # of swiglu_oai: gate is at most this, up from -this to this
    router_bias: bool = False
    expert_bias: bool = False


@dataclass(frozen=True)
class MlaConfig:
    """Multi-head latent attention: keys and values of all heads are made of one latent, and one rotated key."""

    q_lora_rank: int | None  # of the queries' own latent; None: they have none
    kv_lora_rank: int
    nope_dim: int  # of a query's head the part without positions, and of a key's
    rope_dim: int  # the rotated part
    interleaved: bool = True  # rotated dimensions lie in pairs, not in halves
    norm_eps: float = 1e-6  # of the latents' norms, whatever the other norms have
    split_kv_b: bool = False  # the checkpoint has the expansion of keys, turned, and that of values apart

    @property
    def query_dim(self) -> int:
        """Of a head of the queries."""
        return self.nope_dim + self.rope_dim

    @property
    def cache_dim(self) -> int:
        """Of a token in the cache."""
        return self.kv_lora_rank + self.rope_dim


@dataclass(frozen=True)
class ModelConfig:
    """One model, whatever its file format. `architecture` is Hugging Face's name, `family` the file that runs it."""

    architecture: str
    family: str
    hidden_size: int
    num_layers: int
    num_qo_heads: int
    num_kv_heads: int
    head_dim: int  # with `mla` of a value
    intermediate_size: int
    vocab_size: int
    rms_norm_eps: float
    max_position: int
    tie_word_embeddings: bool
    activation: Activation
    rope: RopeConfig
    layer_kinds: tuple[LayerKind, ...]
    query_scale: float  # factor on the attention scores
    rope_sliding: RopeConfig | None = None  # of sliding layers, where it differs
    sliding_window: int | None = None  # tokens a sliding layer looks back at, the current one included
    qkv_bias: bool = False
    attention_output_bias: bool = False
    attention_sinks: bool = False  # each head has a logit that takes part in the softmax without a value
    qk_norm: bool = False  # RMS norm of each query and key head before rope
    post_norms: bool = False  # RMS norm of each sub-layer's output, before it joins the residual stream
    norm_plus_one: bool = False  # the file stores norm weights minus one
    attention_softcap: float | None = None
    final_softcap: float | None = None
    embedding_scale: float = 1.0
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    mla: MlaConfig | None = None  # with it all heads share one KV head
    mtp_layers: int = 0  # after the others, for predicting several tokens at once; they are not used
    moe: MoeConfig | None = None
    moe_layers: tuple[int, ...] = ()  # the layers that are mixtures of experts; the others are dense
    # The quantised matrices of the checkpoint, by module ("layers.0.mlp.up_proj", "lm_head", "embed_tokens").
    stored: Mapping[str, Stored] = field(default_factory=dict, hash=False)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the operator may want to know about what is served of the checkpoint."""
        if not self.mtp_layers:
            return ()
        return (f"layers of the checkpoint that predict several tokens at once (MTP) are skipped: {self.mtp_layers}",)

    def window(self, layer: int) -> int | None:
        """How many tokens layer `layer` looks back at, the current one included; None: all."""
        return self.sliding_window if self.layer_kinds[layer] == "sliding" else None

    def moe_of(self, layer: int) -> MoeConfig | None:
        """The experts of layer `layer`; None: it is dense."""
        return self.moe if layer in self.moe_layers else None

    def rope_of(self, layer: int) -> RopeConfig:
        """The rotary embedding of layer `layer`."""
        if self.layer_kinds[layer] == "sliding" and self.rope_sliding is not None:
            return self.rope_sliding
        return self.rope
