"""The text of models that see. The two places that say whether the head is tied contradict each other."""

import transformers as hf

from tests.support import gemma4, kimi
from tests.support.families.dense import DENSE
from tests.support.families.row import LATENT_HEADS, MINISTRAL, Row, rope, sizes

_VISION = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
_PATCHES = {"image_size": 28, "patch_size": 14}
_OF_IMAGES = {"mm_tokens_per_image": 4, "boi_token_index": 495, "eoi_token_index": 496, "image_token_index": 497}


def nested(name: str, text: str, *, outer: bool, inner: bool) -> hf.PreTrainedConfig:
    """A multimodal configuration around that of the case `text`; whether the head is tied, as both of them say."""
    within = DENSE[text].config()
    within.tie_word_embeddings = inner
    return around(name, within, outer=outer)


def around(name: str, within: hf.PreTrainedConfig, *, outer: bool = False) -> hf.PreTrainedConfig:
    """A multimodal configuration around that of a text model."""
    vision = {"gemma3": hf.SiglipVisionConfig, "mistral3": hf.PixtralVisionConfig}[name](**_VISION, **_PATCHES)
    whole = {"gemma3": hf.Gemma3Config, "mistral3": hf.Mistral3Config}[name]
    more = _OF_IMAGES if name == "gemma3" else {}
    return whole(text_config=within.to_dict(), vision_config=vision.to_dict(), tie_word_embeddings=outer, **more)


NESTED = {
    "gemma3-nested-untied": Row(lambda: nested("gemma3", "gemma3", outer=False, inner=True)),
    "gemma3-nested-tied": Row(lambda: nested("gemma3", "gemma3", outer=True, inner=False)),
    "mistral3-nested-untied": Row(lambda: nested("mistral3", "mistral", outer=False, inner=True)),
    "mistral3-nested-tied": Row(lambda: nested("mistral3", "mistral", outer=True, inner=False)),
    "gemma4-nested": Row(lambda: gemma4.around(DENSE["gemma4"].config())),
    "gemma4-unified": Row(
        lambda: gemma4.around(
            gemma4.unified_config(sizes(96, 6, 3, 160, layers=3, head_dim=32, global_head_dim=48, sliding_window=16))
        )
    ),
    "mistral4": Row(
        lambda: around(
            "mistral3",
            hf.Mistral4Config(
                **sizes(
                    96, 6, 6, 160, layers=2, q_lora_rank=40, kv_lora_rank=64, n_routed_experts=12, n_shared_experts=1
                ),
                **LATENT_HEADS,
                **rope("yarn", factor=4.0, original_max_position_embeddings=24, **MINISTRAL),
                moe_intermediate_size=72,
                num_experts_per_tok=4,
                n_group=4,
                topk_group=2,
                routed_scaling_factor=1.5,
            ),
        )
    ),
    "kimi_k25": Row(lambda: kimi.kimi_around(kimi.k25_text(128, 4, n_routed_experts=20))),
}
