"""A random checkpoint of Qwen3.5-0.8B's shape, vision tower included, with the tokenizer of the demo model."""

import json
from pathlib import Path

import torch
import transformers as hf

from tests.bench.vision_model import silence, tokenizer_with
from tests.support.grid_vision import PLACEHOLDER, TEMPLATE

_VOCABULARY = 248320
_PATCH, _MERGED = 16, 2


def write(folder: Path) -> None:
    """Write the checkpoint `folder`/any-size. It takes two gigabytes, and half a minute."""
    place = folder / "any-size"
    tokenizer = tokenizer_with("<|vision_start|>", PLACEHOLDER, "<|vision_end|>")
    tokenizer.chat_template = TEMPLATE
    torch.manual_seed(0)
    ids = tokenizer.convert_tokens_to_ids(["<|vision_start|>", PLACEHOLDER, "<|vision_end|>"])
    model = hf.AutoModelForImageTextToText.from_config(_config(*ids), dtype=torch.bfloat16)
    silence(model.get_output_embeddings(), tokenizer)
    model.save_pretrained(place)
    tokenizer.save_pretrained(place)
    (place / "preprocessor_config.json").write_text(json.dumps(_PROCESSOR))


_PROCESSOR = {
    "size": {"longest_edge": 16777216, "shortest_edge": 65536},
    "patch_size": _PATCH,
    "temporal_patch_size": 2,
    "merge_size": _MERGED,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "processor_class": "Qwen3VLProcessor",
    "image_processor_type": "Qwen2VLImageProcessorFast",
}


def _config(start: int, placeholder: int, end: int) -> hf.Qwen3_5Config:
    """Return the published configuration."""
    text = {
        "vocab_size": _VOCABULARY,
        "hidden_size": 1024,
        "intermediate_size": 3584,
        "num_hidden_layers": 24,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 16,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "max_position_embeddings": 262144,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e7,
            "partial_rotary_factor": 0.25,
            "mrope_section": [11, 11, 10],
            "mrope_interleaved": True,
        },
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    vision = {
        "depth": 12,
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_heads": 12,
        "num_position_embeddings": 2304,
        "out_hidden_size": 1024,
        "patch_size": _PATCH,
        "spatial_merge_size": _MERGED,
        "temporal_patch_size": 2,
    }
    return hf.Qwen3_5Config(
        text_config=text,
        vision_config=vision,
        image_token_id=placeholder,
        vision_start_token_id=start,
        vision_end_token_id=end,
        video_token_id=_VOCABULARY - 1,
        tie_word_embeddings=True,
        architectures=["Qwen3_5ForConditionalGeneration"],
    )
