"""Encoders with layer norms of the residual stream, after the form of BERT."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numaserve.workers.layers.block import Block
from numaserve.workers.layers.layer import FeedForward
from numaserve.workers.layers.mixers.attention import AttentionNames, Biases
from numaserve.workers.layers.mixers.mask import Mask
from numaserve.workers.layers.mixers.rotation import Rotation
from numaserve.workers.layers.mlp import MlpNames
from numaserve.workers.layers.norm import LayerNorm, NoNorm
from numaserve.workers.layers.position_embedding import SummedEmbedding, Table
from numaserve.workers.layers.post_norm_block import PostNormBlock
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.huggingface import Common
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.program.rope import RopeConfig

_MAX_TYPES = 16
_LEAST_EPS = 9e-13  # GGUF files have 1e-12 in fp32, which is less


@dataclass(frozen=True)
class EncoderNames:
    """The modules of an encoder. `layer` begins the names of a layer's modules."""

    layer: str
    attention: AttentionNames
    attention_norm: str
    mlp: MlpNames
    output_norm: str
    embedding_norm: str = "embeddings.LayerNorm"


# The names that transformers gives the modules of newer encoders.
TRANSFORMERS_NAMES = EncoderNames(
    layer="layers.",
    attention=AttentionNames(),
    attention_norm="post_attention_layernorm",
    mlp=MlpNames(),
    output_norm="post_mlp_layernorm",
)


def post_norm_encoder(
    common: Common,
    family: str,
    architecture: str,
    names: EncoderNames,
    *,
    rope: RopeConfig,
    biases: Biases,
    mlp: Callable[[str], FeedForward],
    tables: tuple[Table, ...],
    **changes: Any,
) -> ModelConfig:
    """Return an encoder whose mean is pooled. `mlp` makes the MLP of a layer from the beginning of its modules' names;
    `changes` are fields of the model."""
    eps = read_eps(common.fields)

    def norm(module: str, gguf: str) -> LayerNorm:
        return LayerNorm(module, common.hidden, eps, gguf)

    def block(layer: int) -> Block:
        at, before = f"{names.layer}{layer}.", NoNorm()
        attention = common.attention(
            layer,
            at=at,
            rotation=Rotation(rope),
            mask=Mask(bidirectional=True),
            biases=biases,
            names=names.attention,
        )
        return PostNormBlock(
            before,
            attention,
            before,
            mlp(at),
            attention_norm=norm(at + names.attention_norm, f"{at}attn_output_norm"),
            output_norm=norm(at + names.output_norm, f"{at}layer_output_norm"),
        )

    embedding = SummedEmbedding(
        common.vocabulary,
        common.hidden,
        module="embeddings.word_embeddings",
        tables=tables,
        norm=norm(names.embedding_norm, "token_embd_norm"),
    )
    config = common.model(family, architecture, block, embedding=embedding, norm=NoNorm(), **changes)
    return config.pooled("mean")


def read_eps(fields: Fields) -> float:
    """Return the epsilon of layer norms."""
    return fields.number("layer_norm_eps", _LEAST_EPS, 1.0, 1e-12)


def read_types(fields: Fields, hidden: int, default: int) -> tuple[Table, ...]:
    """Return the table of token types, `hidden` columns wide; none where the model has no types."""
    count = fields.integer("type_vocab_size", 0, _MAX_TYPES, default)
    return (Table("type", "embeddings.token_type_embeddings", count, hidden, "token_types"),) if count else ()
