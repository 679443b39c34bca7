"""GTE v1.5 and multilingual, and Snowflake Arctic Embed 2 M: BERT with rope, and gated MLPs; also with a
classification head.

Published checkpoints have the names of their own modelling code, and saved ones may have those of transformers.
"""

from numaserve.workers.layers.mixers.attention import AttentionNames
from numaserve.workers.layers.mlp import Mlp, MlpNames
from numaserve.workers.models.config.encoders import TRANSFORMERS_NAMES, EncoderNames, post_norm_encoder, read_types
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.heads import with_head
from numaserve.workers.models.config.huggingface import read_common
from numaserve.workers.models.config.rope import read_rope
from numaserve.workers.models.family import ROTARY_BUFFERS, TABLE_BUFFERS, Family
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.program.ops.products import Activation
from numaserve.workers.program.rope import RopeConfig

_PACKED = AttentionNames("attention.qkv_proj", "attention.qkv_proj", "attention.qkv_proj", "attention.o_proj")
_APART = AttentionNames("attention.q_proj", "attention.k_proj", "attention.v_proj", "attention.o_proj")
_ACTIVATIONS: dict[str, Activation] = {"gelu": "geglu", "silu": "silu"}
_PREFIXES = ("", "new.", "gte.")
_HEADS = ("pooler.", "lm_head.", "classifier.")


def configure(fields: Fields, architecture: str) -> ModelConfig:
    """Map config.json, in the published form or in that of transformers."""
    fields.refuse("position_embedding_type", "rope")
    fields.refuse("layer_norm_type", "layer_norm")
    fields.refuse("logn_attention_scale", False)  # by the length of each text
    common = read_common(fields)
    rope = _read_rope(fields, common.head_dim)
    activation = fields.choice("hidden_act", _ACTIVATIONS, "gelu")
    published = EncoderNames(
        layer="encoder.layer.",
        attention=_PACKED if fields.flag("pack_qkv", True) else _APART,
        attention_norm="attn_ln",
        mlp=MlpNames("mlp.up_gate_proj", "mlp.up_gate_proj", "mlp.down_proj", up_first=True),
        output_norm="mlp_ln",
    )

    def model(names: EncoderNames) -> ModelConfig:
        config = post_norm_encoder(
            common,
            "gte",
            architecture,
            names,
            rope=rope,
            biases="all",
            mlp=lambda at: Mlp(at, common.hidden, common.intermediate, activation, names.mlp, biased=True),
            tables=read_types(fields, common.hidden, 1),
            prefixes=_PREFIXES,
            ignored_prefixes=tuple(prefix + head for prefix in _PREFIXES for head in _HEADS),
            aliases=(("classifier", "classifier"),),  # not below the prefix of the encoder
        )
        return with_head(config, fields, architecture)

    return model(published).or_saved_as(model(TRANSFORMERS_NAMES))


def _read_rope(fields: Fields, head_dim: int) -> RopeConfig:
    """Return the rotary embedding. A scaling of type `ntk` divides the last frequency by the factor, and the others by
    less, down to the first by factor^(2 / head_dim); it applies to texts of any length."""
    scaling = fields.child("rope_scaling")
    if scaling.values.get("type") != "ntk":
        return read_rope(fields, head_dim)
    scaling.refuse("mixed_b")
    factor = scaling.number("factor", 1.0, 1e6)
    theta = fields.number("rope_theta", 1.0, 1e12, 10_000.0)
    return RopeConfig("linear", theta * factor, head_dim, factor=factor ** (2 / head_dim))


FAMILY = Family(
    name="gte",
    architectures=(
        "NewModel",
        "NewForMaskedLM",
        "NewForTokenClassification",
        "NewForSequenceClassification",
        "GteModel",
        "GteForMaskedLM",
        "GteForSequenceClassification",
    ),
    configure=configure,
    buffers=(*ROTARY_BUFFERS, *TABLE_BUFFERS),
)
