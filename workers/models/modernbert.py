"""ModernBERT: an encoder with rope, gated MLPs, norms before each sub-layer, and windows in two of three layers;
also as a classifier or a SPLADE model."""

from numaserve.workers.layers.block import Block
from numaserve.workers.layers.dense import Dense
from numaserve.workers.layers.masked_head import MaskedHead
from numaserve.workers.layers.mixers.attention import AttentionNames
from numaserve.workers.layers.mixers.mask import Mask
from numaserve.workers.layers.mixers.rotation import Rotation
from numaserve.workers.layers.mlp import MlpNames
from numaserve.workers.layers.norm import LayerNorm, NoNorm
from numaserve.workers.layers.position_embedding import SummedEmbedding
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.heads import CLASSIFIES, GGUF_DENSE, GGUF_LOGITS, MASKED, read_labels
from numaserve.workers.models.config.huggingface import read_common, read_layer_kinds
from numaserve.workers.models.config.rope import read_ropes
from numaserve.workers.models.family import Family, GgufForm, Values, encoder_values
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.program.ops.products import Activation
from numaserve.workers.program.ops.rows import Pooling

_DEFAULTS = {
    "vocab_size": 50368,
    "hidden_size": 768,
    "intermediate_size": 1152,
    "num_hidden_layers": 22,
    "num_attention_heads": 12,
    "max_position_embeddings": 8192,
}
_ACTIVATIONS: dict[str, Activation] = {"gelu": "geglu", "silu": "silu"}
_HEAD_ACTIVATIONS: dict[str, Activation] = {"gelu": "gelu"}
_POOLINGS: dict[str, Pooling] = {"cls": "cls", "mean": "mean"}
_ATTENTION = AttentionNames("attn.Wqkv", "attn.Wqkv", "attn.Wqkv", "attn.Wo")
_MLP = MlpNames("mlp.Wi", "mlp.Wi", "mlp.Wo")
_PERIOD = 3  # every third layer sees all tokens, the first one among them
_PREFIXES = ("", "model.")
_HEADS = ("head.", "decoder.", "classifier.")


def configure(fields: Fields, architecture: str) -> ModelConfig:
    """Map config.json; what it leaves out has transformers' default."""
    fields = fields.with_defaults(**_DEFAULTS)
    for bias in ("attention_bias", "mlp_bias", "norm_bias"):
        fields.refuse(bias, False)
    common = read_common(fields)
    period = fields.integer("global_attn_every_n_layers", 1, common.layers, min(_PERIOD, common.layers))
    slides = read_layer_kinds(fields, [layer % period > 0 for layer in range(common.layers)])
    # The window counts both sides.
    window = fields.integer("local_attention", 2, 2 * common.max_position, 128) // 2
    full_theta = fields.number("global_rope_theta", 1.0, 1e12, 160_000.0)
    sliding_theta = fields.number("local_rope_theta", 1.0, 1e12, 10_000.0)
    ropes = read_ropes(fields, common.head_dim, full_theta=full_theta, sliding_theta=sliding_theta)
    eps = fields.number("norm_eps", 1e-12, 1.0, 1e-5)
    activation = fields.choice("hidden_activation", _ACTIVATIONS, "gelu")

    def norm(module: str, gguf: str) -> LayerNorm:
        return LayerNorm(module, common.hidden, eps, gguf, biased=False)

    def block(layer: int) -> Block:
        at, slide = f"layers.{layer}.", slides[layer]
        attention = common.attention(
            layer,
            rotation=Rotation(ropes[slide]),
            mask=Mask(window if slide else None, bidirectional=True),
            names=_ATTENTION,
        )
        # The embeddings are normalised already where the first layer begins.
        before = norm(f"{at}attn_norm", f"{at}attn_norm") if layer else NoNorm()
        mlp = common.mlp(layer, activation=activation, names=_MLP)
        return Block(before, attention, norm(f"{at}mlp_norm", f"{at}ffn_norm"), mlp)

    embedding = SummedEmbedding(
        common.vocabulary,
        common.hidden,
        module="embeddings.tok_embeddings",
        norm=norm("embeddings.norm", "token_embd_norm"),
    )
    config = common.model(
        "modernbert",
        architecture,
        block,
        embedding=embedding,
        norm=norm("final_norm", "output_norm"),
        prefixes=_PREFIXES,
        ignored_prefixes=_HEADS,
        aliases=tuple((name, name) for name in ("classifier", "head", "decoder")),
    )
    if not architecture.endswith((CLASSIFIES, MASKED)):
        return config.pooled("mean")
    transform = Dense(
        "head.dense",
        common.hidden,
        common.hidden,
        fields.choice("classifier_activation", _HEAD_ACTIVATIONS, "gelu"),
        biased=fields.flag("classifier_bias", False),
        norm=norm("head.norm", "cls.norm"),
        gguf=GGUF_DENSE,
    )
    if architecture.endswith(MASKED):
        bias = "decoder.bias" if fields.flag("decoder_bias", True) else ""
        tied = fields.flag("tie_word_embeddings", True)
        return config.pooled("mean").with_masked_head(MaskedHead(transform, embedding, "decoder", bias, tied=tied))
    labels = read_labels(fields)
    pooling = fields.choice("classifier_pooling", _POOLINGS, "cls")
    logits = Dense("classifier", common.hidden, len(labels), gguf=GGUF_LOGITS)
    return config.classifying(pooling, (transform, logits), labels)


def _gguf_values(metadata: Fields, values: Values) -> Values:
    return {
        **encoder_values(metadata, values),
        "local_attention": values.get("sliding_window"),
        "global_attn_every_n_layers": values.get("sliding_window_pattern"),
        "global_rope_theta": values.get("rope_theta"),
        "local_rope_theta": values.get("rope_local_base_freq"),
        "norm_eps": values.get("layer_norm_eps"),
    }


FAMILY = Family(
    name="modernbert",
    architectures=("ModernBertModel", "ModernBertForMaskedLM", "ModernBertForSequenceClassification"),
    configure=configure,
    gguf=GgufForm("modern-bert", values=_gguf_values, classifier="ModernBertForSequenceClassification"),
)
