"""Published models: their config.json, and what their layers are."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from published_decoders import (
    GLM_FLASH,
    KIMI_K25,
    MAVERICK,
    MIMO,
    MIMO_FULL,
    MISTRAL4,
    MISTRAL4_NESTED,
    SCOUT,
)
from published_hybrids import GRANITE_TINY, KIMI_LINEAR, LFM2, LFM2_MOE, NEMOTRON_NANO, QWEN3_5, QWEN3_5_MOE, QWEN3_NEXT
from published_vision import GRANITE_DOCLING, PADDLEOCR_VL, PADDLEOCR_VL_NESTED, QWEN3_VL_4B, QWEN3_VL_30B

from tests.support.full_shapes import DEEPSEEK_R1, GPT_OSS_120B, LLAMA_70B, QWEN3_235B

Layers = Sequence[int]


@dataclass(frozen=True)
class Published:
    """A config.json, the number of blocks, those with experts, and those whose attention reaches all tokens.

    `skipped` layers predict several tokens, and `spelt` are fields in a form that transformers reads. `processor` are
    the settings of the image processor that the layers decide.
    """

    values: dict[str, Any]
    blocks: int
    experts: Layers = ()
    full: Layers | None = None  # None: all blocks
    skipped: int = 0
    spelt: dict[str, Any] = field(default_factory=dict)
    processor: dict[str, Any] = field(default_factory=dict)


_NEMOTRON_EXPERTS = [block for block in range(29) if block not in (2, 6, 10, 14, 18, 23)]
PUBLISHED = {
    "Llama 3.1 70B": Published(LLAMA_70B, 80),
    "Llama 4 Scout": Published(SCOUT, 48, range(48), range(3, 48, 4)),
    "Llama 4 Maverick": Published(
        MAVERICK,
        48,
        range(1, 48, 2),
        range(3, 48, 4),
        spelt={"text_config": MAVERICK["text_config"] | {"attn_temperature_tuning": True}},
    ),
    "Qwen3-235B": Published(QWEN3_235B, 94, range(94)),
    "gpt-oss-120b": Published(GPT_OSS_120B, 36, range(36), range(1, 36, 2)),
    "DeepSeek-R1": Published(DEEPSEEK_R1, 61, range(3, 61), skipped=1),
    "Kimi K2.5": Published(KIMI_K25, 61, range(1, 61)),
    "Kimi Linear": Published(KIMI_LINEAR, 27, range(1, 27), (3, 7, 11, 15, 19, 23, 26)),
    "GLM-4.7-Flash": Published(GLM_FLASH, 47, range(1, 47), skipped=1),
    "Mistral Small 4": Published(MISTRAL4, 36, range(36)),
    "Mistral Small 4, nested": Published(MISTRAL4_NESTED, 36, range(36)),
    "MiMo-V2-Flash": Published(MIMO, 48, range(1, 48), MIMO_FULL, skipped=3),
    "Granite 4 Tiny": Published(GRANITE_TINY, 40, range(40), (5, 15, 25, 35)),
    "Nemotron 3 Nano": Published(NEMOTRON_NANO, 29, _NEMOTRON_EXPERTS, (3, 7, 11, 15, 19, 24)),
    "LFM2": Published(LFM2, 16, (), (2, 5, 8, 10, 12, 14)),
    "LFM2 MoE": Published(LFM2_MOE, 24, range(2, 24), (2, 6, 10, 14, 18, 21)),
    "Qwen3.5": Published(QWEN3_5, 64, (), range(3, 64, 4), skipped=1),
    "Qwen3.5 MoE": Published(QWEN3_5_MOE, 40, range(40), range(3, 40, 4), skipped=1),
    "Qwen3-VL": Published(QWEN3_VL_4B, 36),
    "Qwen3-VL MoE": Published(QWEN3_VL_30B, 48, range(48)),
    "granite-docling": Published(GRANITE_DOCLING, 30, processor={"max_image_size": {"longest_edge": 512}}),
    "PaddleOCR-VL": Published(PADDLEOCR_VL, 18, spelt=PADDLEOCR_VL_NESTED),
    "Qwen3-Next": Published(QWEN3_NEXT, 48, range(48), range(3, 48, 4), skipped=1),
}
