"""OLMo 2 and OLMo 3: norms over all heads, and after each sub-layer instead of before; OLMo 3 with sliding layers."""

from numaserve.workers.layers.block import Block
from numaserve.workers.layers.mixers.mask import Mask
from numaserve.workers.layers.mixers.rotation import Rotation
from numaserve.workers.layers.norm import NoNorm
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.huggingface import (
    Common,
    read_biases,
    read_common,
    read_layer_kinds,
    read_sliding_window,
    windows_of,
)
from numaserve.workers.models.config.rope import read_ropes
from numaserve.workers.models.family import Family, GgufForm, Values, without_experts
from numaserve.workers.models.spec import ModelConfig

_OLMO3 = "Olmo3ForCausalLM"
_PERIOD = 4  # of OLMo 3's layers one sees all tokens
_THETA = 5e5  # OLMo 3's


def configure(fields: Fields, architecture: str) -> ModelConfig:
    """Map config.json; what it leaves out has transformers' default."""
    common = read_common(fields.with_defaults(rms_norm_eps=1e-5))
    is_olmo3 = architecture == _OLMO3 or fields.text("model_type", "") == "olmo3"
    kinds = _sliding_kinds(common) if is_olmo3 else [(Mask(), Rotation(common.rope))] * common.layers
    biases = read_biases(fields)

    def block(layer: int) -> Block:
        at, (mask, rotation) = f"layers.{layer}.", kinds[layer]
        attention = common.attention(
            layer, norms=common.all_heads_norms(layer), rotation=rotation, mask=mask, biases=biases
        )
        before = NoNorm()
        return common.block(
            layer,
            attention,
            input_norm=before,
            post_attention_norm=common.norm(f"{at}post_attention_layernorm", f"{at}post_attention_norm"),
            mlp_norm=before,
            post_mlp_norm=common.norm(f"{at}post_feedforward_layernorm", f"{at}post_ffw_norm"),
        )

    return common.model("olmo2", architecture, block)


def _sliding_kinds(common: Common) -> list[tuple[Mask, Rotation]]:
    """Return the mask and the rotation of each layer of OLMo 3. Only layers that see all tokens have a scaled rope."""
    fields = common.fields
    slides = read_layer_kinds(fields, [bool((layer + 1) % _PERIOD) for layer in range(common.layers)])
    windows = windows_of(slides, read_sliding_window(fields, default=4096))
    theta = fields.number("rope_theta", 1.0, 1e12, _THETA)
    ropes = read_ropes(fields, common.head_dim, full_theta=theta, sliding_theta=theta)
    return [(Mask(window), Rotation(ropes[each])) for window, each in zip(windows, slides, strict=True)]


def _gguf_values(metadata: Fields, values: Values) -> Values:
    """Return the fields of a GGUF file. Only OLMo 3 has a sliding window; both have one architecture."""
    slides = values.get("sliding_window") is not None
    return {**without_experts(metadata, values), "model_type": "olmo3" if slides else "olmo2"}


FAMILY = Family(
    name="olmo2",
    architectures=("Olmo2ForCausalLM", _OLMO3),
    configure=configure,
    gguf=GgufForm("olmo2", values=_gguf_values),
)
