"""Models that are only described."""

from dataclasses import dataclass, replace
from typing import Any

from numaserve.workers.layers.axes import KvHeads, QueryHeads
from numaserve.workers.layers.caches import DeltaState
from numaserve.workers.layers.layer import Mixer
from numaserve.workers.layers.mixers.attention import Attention
from numaserve.workers.layers.partition import RankPart
from numaserve.workers.layers.stored import Stored
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.registry import family_of
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.program.buffers import Operand, Partial
from numaserve.workers.program.caches import CacheIndex
from numaserve.workers.program.recording.builder import ProgramBuilder

# The shape of SmolLM2-135M: 9 query heads and 3 KV heads do not divide by 2.
SMOL: dict[str, Any] = {
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "intermediate_size": 1536,
    "vocab_size": 49152,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}


def configured(
    architecture: str = "LlamaForCausalLM", *, stored: dict[str, Stored] | None = None, **changes: object
) -> ModelConfig:
    """A model of SmolLM2's shape, but for `changes` of its config.json."""
    config = family_of(architecture, "config.json").config_of(Fields(SMOL | changes, "config.json"), architecture)
    return replace(config, stored=stored or {})


def with_experts(
    count: int = 12, top_k: int = 4, width: int = 768, shared: int = 1024, dense: tuple[int, ...] = (0,), **more: Any
) -> ModelConfig:
    """The same with experts in every layer but those that are `dense`, and a shared one with a gate."""
    return configured(
        "Qwen2MoeForCausalLM",
        qkv_bias=False,
        num_experts=count,
        num_experts_per_tok=top_k,
        moe_intermediate_size=width,
        shared_expert_intermediate_size=shared,
        mlp_only_layers=list(dense),
        **more,
    )


@dataclass(frozen=True)
class _DeltaNet(Mixer):
    """A gated delta net without weights, for plans of memory."""

    keys: int
    values: int

    @property
    def cache(self) -> DeltaState:
        keys, values = KvHeads("keys", self.keys, self.values), QueryHeads("values", self.values, self.keys)
        return DeltaState(keys, values, key_dim=128, value_dim=128, behind=3)

    def forward(self, b: ProgramBuilder, part: RankPart, x: Operand, place: CacheIndex) -> Partial:
        raise NotImplementedError


def recurrent(layers: int = 32, *, keys: int = 16, values: int = 32, **changes: object) -> ModelConfig:
    """A model with a gated delta net in three of four layers, and the memory of its states."""
    model = configured(num_hidden_layers=layers, **changes)
    blocks = tuple(
        block if layer % 4 == 3 else replace(block, attention=_DeltaNet(keys, values))
        for layer, block in enumerate(model.decoder.blocks)
    )
    return replace(model, decoder=replace(model.decoder, blocks=blocks))


def bidirectional(architecture: str = "LlamaForCausalLM", **changes: object) -> ModelConfig:
    """The model of `configured`, with attention in both directions and a context of 512 tokens unless changed."""
    model = configured(architecture, **{"max_position_embeddings": 512, **changes})
    blocks = tuple(replace(block, attention=_seeing_all(block.attention)) for block in model.decoder.blocks)
    return replace(model, decoder=replace(model.decoder, blocks=blocks))


def splade(**changes: object) -> ModelConfig:
    """A SPLADE model of BERT, of the same shape."""
    return configured("BertForMaskedLM", **{"max_position_embeddings": 512, **changes}).sparse()


def _seeing_all(mixer: Mixer) -> Attention:
    assert isinstance(mixer, Attention)
    return replace(mixer, mask=replace(mixer.mask, bidirectional=True))
