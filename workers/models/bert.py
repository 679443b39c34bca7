"""BERT, RoBERTa, XLM-R and DistilBERT: encoders with learned positions, and layer norms of the residual stream; also
with a classification head, or as SPLADE models."""

from dataclasses import dataclass

from numaserve.workers.layers.dense import Dense
from numaserve.workers.layers.masked_head import MaskedHead
from numaserve.workers.layers.mixers.attention import AttentionNames
from numaserve.workers.layers.mlp import MlpNames, PlainMlp
from numaserve.workers.layers.norm import LayerNorm
from numaserve.workers.layers.position_embedding import Table
from numaserve.workers.models.config.encoders import EncoderNames, post_norm_encoder, read_eps, read_types
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.heads import GGUF_DENSE, GGUF_LOGITS, MASKED, bert_head, with_head
from numaserve.workers.models.config.huggingface import read_common
from numaserve.workers.models.family import TABLE_BUFFERS, Family, GgufForm, encoder_values
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.program.ops.products import Activation
from numaserve.workers.program.rope import UNROTATED

_ACTIVATIONS: dict[str, Activation] = {"gelu": "gelu"}

_BERT = EncoderNames(
    layer="encoder.layer.",
    attention=AttentionNames(
        "attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"
    ),
    attention_norm="attention.output.LayerNorm",
    mlp=MlpNames(up="intermediate.dense", down="output.dense"),
    output_norm="output.LayerNorm",
)
_DISTILBERT = EncoderNames(
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


@dataclass(frozen=True)
class _MaskedNames:
    """The modules of the head of a masked language model."""

    dense: str
    norm: str
    decoder: str
    bias: str  # of logits, whose matrix is that of the embeddings


_MASKED = {
    "bert": _MaskedNames(
        "cls.predictions.transform.dense",
        "cls.predictions.transform.LayerNorm",
        "cls.predictions.decoder",
        "cls.predictions.bias",
    ),
    "roberta": _MaskedNames("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", "lm_head.bias"),
    "distilbert": _MaskedNames("vocab_transform", "vocab_layer_norm", "vocab_projector", "vocab_projector.bias"),
}


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
    activation = fields.choice("hidden_act", _ACTIVATIONS, "gelu")
    positions = Table(
        "position", "embeddings.position_embeddings", common.max_position, common.hidden, "position_embd", shift
    )
    types = () if is_distilled else read_types(fields, common.hidden, 2)
    config = post_norm_encoder(
        common,
        "bert",
        architecture,
        names,
        rope=UNROTATED,
        biases="all",
        mlp=lambda at: PlainMlp(at, common.hidden, common.intermediate, activation, biased=True, names=names.mlp),
        tables=(positions, *types),
        max_position=common.max_position - shift,
        prefixes=_PREFIXES,
        ignored_prefixes=tuple(prefix + head for prefix in _PREFIXES for head in _HEADS),
        # Heads are not below the prefix of the encoder.
        aliases=tuple((name, name) for name in ("classifier", "pre_classifier", "cls.", "lm_head.", "vocab_")),
    )
    if architecture.endswith(MASKED):
        kind = "distilbert" if is_distilled else "roberta" if is_roberta else "bert"
        return config.with_masked_head(_masked_head(fields, config, _MASKED[kind], activation))
    # GGUF files of DistilBERT say that they are of BERT; alone among them they have no types.
    head = _distilbert_head if not types else _roberta_head if is_roberta else bert_head
    return with_head(config, fields, architecture, head)


def _masked_head(fields: Fields, config: ModelConfig, names: _MaskedNames, activation: Activation) -> MaskedHead:
    hidden, tied = config.hidden_size, fields.flag("tie_word_embeddings", True)
    transform = Dense(names.dense, hidden, hidden, activation, norm=LayerNorm(names.norm, hidden, read_eps(fields)))
    bias = names.bias if tied else f"{names.decoder}.bias"
    return MaskedHead(transform, config.decoder.embedding, names.decoder, bias, tied=tied)


def _roberta_head(hidden: int, labels: int) -> tuple[Dense, Dense]:
    return Dense("classifier.dense", hidden, hidden, "tanh"), Dense("classifier.out_proj", hidden, labels)


def _distilbert_head(hidden: int, labels: int) -> tuple[Dense, Dense]:
    return (
        Dense("pre_classifier", hidden, hidden, "relu", gguf=GGUF_DENSE),
        Dense("classifier", hidden, labels, gguf=GGUF_LOGITS),
    )


FAMILY = Family(
    name="bert",
    architectures=(
        "BertModel",
        "BertForMaskedLM",
        "BertForSequenceClassification",
        "RobertaModel",
        "RobertaForMaskedLM",
        "RobertaForSequenceClassification",
        "XLMRobertaModel",
        "XLMRobertaForMaskedLM",
        "XLMRobertaForSequenceClassification",
        "CamembertModel",
        "CamembertForSequenceClassification",
        "DistilBertModel",
        "DistilBertForMaskedLM",
        "DistilBertForSequenceClassification",
    ),
    configure=configure,
    # The positions of padding are left out there, and heads of all architectures have the same names.
    gguf=GgufForm("bert", values=encoder_values, classifier="BertForSequenceClassification"),
    buffers=TABLE_BUFFERS,
)
