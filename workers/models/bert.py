"""BERT, RoBERTa, XLM-R and DistilBERT: encoders with learned positions, and layer norms of the residual stream."""

from dataclasses import dataclass

from numaserve.workers.layers.block import Block
from numaserve.workers.layers.mixers.attention import AttentionNames
from numaserve.workers.layers.mixers.mask import Mask
from numaserve.workers.layers.mixers.rotation import Rotation
from numaserve.workers.layers.mlp import MlpNames, PlainMlp
from numaserve.workers.layers.norm import LayerNorm, NoNorm
from numaserve.workers.layers.position_embedding import SummedEmbedding, Table
from numaserve.workers.layers.post_norm_block import PostNormBlock
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.huggingface import Common, read_common
from numaserve.workers.models.family import Family
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.program.ops.products import Activation
from numaserve.workers.program.rope import UNROTATED

_ACTIVATIONS: dict[str, Activation] = {"gelu": "gelu"}
_MAX_TYPES = 16


@dataclass(frozen=True)
class _Names:
    """The modules of an encoder. `layer` begins the names of a layer's modules."""

    layer: str
    attention: AttentionNames
    attention_norm: str
    mlp: MlpNames
    output_norm: str


_BERT = _Names(
    layer="encoder.layer.",
    attention=AttentionNames(
        "attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"
    ),
    attention_norm="attention.output.LayerNorm",
    mlp=MlpNames(up="intermediate.dense", down="output.dense"),
    output_norm="output.LayerNorm",
)
_DISTILBERT = _Names(
    layer="transformer.layer.",
    attention=AttentionNames("attention.q_lin", "attention.k_lin", "attention.v_lin", "attention.out_lin"),
    attention_norm="sa_layer_norm",
    mlp=MlpNames(up="ffn.lin1", down="ffn.lin2"),
    output_norm="output_layer_norm",
)
# What DistilBERT calls the fields of the others.
_DISTILBERT_FIELDS = {
    "hidden_size": "dim",
    "num_attention_heads": "n_heads",
    "num_hidden_layers": "n_layers",
    "intermediate_size": "hidden_dim",
    "hidden_act": "activation",
}
# Checkpoints with a head for some task have a prefix for the encoder.
_PREFIXES = ("", "bert.", "roberta.", "distilbert.")
_HEADS = ("pooler.", "cls.", "lm_head.", "vocab_")


def configure(fields: Fields, architecture: str) -> ModelConfig:
    """Map config.json; what it leaves out has transformers' default."""
    is_distilled, is_roberta = "Distil" in architecture, "Roberta" in architecture or "Camembert" in architecture
    if is_distilled:
        fields = fields.with_values(**{name: fields.values.get(own) for name, own in _DISTILBERT_FIELDS.items()})
        fields.refuse("sinusoidal_pos_embds", False, True)
    fields.refuse("position_embedding_type", "absolute")
    fields.refuse("is_decoder", False)
    common, names = read_common(fields), _DISTILBERT if is_distilled else _BERT
    # Padding has a position of its own in RoBERTa, and the positions of tokens begin after it.
    shift = fields.integer("pad_token_id", 0, common.vocabulary - 1, 1) + 1 if is_roberta else 0
    if shift >= common.max_position:
        raise fields.error(f"max_position_embeddings={common.max_position} leaves no position after pad_token_id")
    eps = fields.number("layer_norm_eps", 1e-12, 1.0, 1e-12)
    activation = fields.choice("hidden_act", _ACTIVATIONS, "gelu")
    types = 0 if is_distilled else fields.integer("type_vocab_size", 1, _MAX_TYPES, 2)

    def norm(module: str, gguf: str) -> LayerNorm:
        return LayerNorm(module, common.hidden, eps, gguf)

    def block(layer: int) -> Block:
        at = f"{names.layer}{layer}."
        attention = common.attention(
            layer,
            at=at,
            rotation=Rotation(UNROTATED),
            mask=Mask(bidirectional=True),
            biases="all",
            names=names.attention,
        )
        mlp = PlainMlp(at, common.hidden, common.intermediate, activation, biased=True, names=names.mlp)
        before = NoNorm()
        return PostNormBlock(
            before,
            attention,
            before,
            mlp,
            attention_norm=norm(at + names.attention_norm, f"{at}attn_output_norm"),
            output_norm=norm(at + names.output_norm, f"{at}layer_output_norm"),
        )

    embedding = SummedEmbedding(
        common.vocabulary,
        common.hidden,
        module="embeddings.word_embeddings",
        tables=_tables(common, shift, types),
        norm=norm("embeddings.LayerNorm", "token_embd_norm"),
    )
    config = common.model(
        "bert",
        architecture,
        block,
        embedding=embedding,
        norm=NoNorm(),
        max_position=common.max_position - shift,
        prefixes=_PREFIXES,
        ignored_prefixes=tuple(prefix + head for prefix in _PREFIXES for head in _HEADS),
    )
    return config.pooled("mean")


def _tables(common: Common, shift: int, types: int) -> tuple[Table, ...]:
    """Return the tables that are added to token embeddings: positions, and types where the model has them."""
    positions = Table(
        "position", "embeddings.position_embeddings", common.max_position, common.hidden, "position_embd", shift
    )
    if not types:
        return (positions,)
    return positions, Table("type", "embeddings.token_type_embeddings", types, common.hidden, "token_types")


FAMILY = Family(
    name="bert",
    architectures=(
        "BertModel",
        "BertForMaskedLM",
        "RobertaModel",
        "RobertaForMaskedLM",
        "XLMRobertaModel",
        "XLMRobertaForMaskedLM",
        "CamembertModel",
        "DistilBertModel",
        "DistilBertForMaskedLM",
    ),
    configure=configure,
)
