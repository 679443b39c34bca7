"""NomicBERT: BERT with rope, and gated MLPs, without biases; also with a classification head.

Published checkpoints have the names of their own modelling code, and saved ones may have those of transformers.
"""

from numaserve.workers.layers.mixers.attention import AttentionNames
from numaserve.workers.layers.mlp import Mlp, MlpNames
from numaserve.workers.models.config.encoders import (
    TRANSFORMERS_NAMES,
    EncoderNames,
    post_norm_encoder,
    read_types,
)
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.heads import with_head
from numaserve.workers.models.config.huggingface import read_common
from numaserve.workers.models.config.rope import read_rope
from numaserve.workers.models.family import ROTARY_BUFFERS, TABLE_BUFFERS, Family, GgufForm, encoder_values
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.program.ops.products import Activation

_PUBLISHED = EncoderNames(
    layer="encoder.layers.",
    attention=AttentionNames("attn.Wqkv", "attn.Wqkv", "attn.Wqkv", "attn.out_proj"),
    attention_norm="norm1",
    mlp=MlpNames("mlp.fc12", "mlp.fc11", "mlp.fc2"),
    output_norm="norm2",
    embedding_norm="emb_ln",
)
# What the published config.json calls the fields of transformers.
_PUBLISHED_FIELDS = {
    "hidden_size": "n_embd",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
    "intermediate_size": "n_inner",
    "max_position_embeddings": "n_positions",
    "rope_theta": "rotary_emb_base",
    "layer_norm_eps": "layer_norm_epsilon",
    "hidden_act": "activation_function",
}
_DEFAULTS = {
    "vocab_size": 30528,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 2048,
}
_THETA = 1000.0
_ACTIVATIONS: dict[str, Activation] = {"silu": "silu", "swiglu": "silu", "gelu": "geglu", "geglu": "geglu"}
_PREFIXES = ("", "nomic_bert.", "bert.")
_HEADS = ("pooler.", "cls.")


def configure(fields: Fields, architecture: str) -> ModelConfig:
    """Map config.json, in the published form or in that of transformers."""
    if fields.has("n_embd"):
        fields = _as_in_transformers(fields)
    fields = fields.with_defaults(**_DEFAULTS)
    common = read_common(fields)
    rope = read_rope(fields, common.head_dim, default_theta=_THETA)
    activation = fields.choice("hidden_act", _ACTIVATIONS, "silu")

    def model(names: EncoderNames) -> ModelConfig:
        config = post_norm_encoder(
            common,
            "nomic_bert",
            architecture,
            names,
            rope=rope,
            biases="none",
            mlp=lambda at: Mlp(at, common.hidden, common.intermediate, activation, names.mlp),
            tables=read_types(fields, common.hidden, 2),
            prefixes=_PREFIXES,
            ignored_prefixes=tuple(prefix + head for prefix in _PREFIXES for head in _HEADS),
            aliases=(("classifier", "classifier"),),  # not below the prefix of the encoder
        )
        return with_head(config, fields, architecture)

    return model(_PUBLISHED).or_saved_as(model(TRANSFORMERS_NAMES))


def _as_in_transformers(fields: Fields) -> Fields:
    """Return the published fields by the names of transformers. Raises `OperatorError` for variants that no published
    model without experts has."""
    experts = fields.integer("moe_every_n_layers", 0, 2**10, 0)
    if experts:
        raise fields.error(
            f"moe_every_n_layers={experts}: encoders with experts, such as nomic-embed-text-v2-moe, are not supported;"
            " serve nomic-embed-text-v1.5"
        )
    for flag in ("causal", "prenorm", "use_rms_norm", "parallel_block", "rotary_emb_interleaved"):
        fields.refuse(flag, False)
    for bias in ("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"):
        fields.refuse(bias, False)
    fields.refuse("rotary_emb_fraction", 1.0)
    fields.refuse("rotary_emb_scale_base")
    fields.refuse("rotary_scaling_factor")  # of positions by the length of each text
    values = {name: fields.values.get(own) for name, own in _PUBLISHED_FIELDS.items()}
    if values["intermediate_size"] is None:
        values["intermediate_size"] = 4 * fields.integer("n_embd", 1, 2**17)
    return fields.with_values(**values)


FAMILY = Family(
    name="nomic_bert",
    architectures=(
        "NomicBertModel",
        "NomicBertForMaskedLM",
        "NomicBertForPreTraining",
        "NomicBertForSequenceClassification",
    ),
    configure=configure,
    gguf=GgufForm("nomic-bert", values=encoder_values),
    buffers=(*ROTARY_BUFFERS, *TABLE_BUFFERS),
)
