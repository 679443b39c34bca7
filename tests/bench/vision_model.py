"""A random checkpoint of SmolVLM-500M-Instruct's shape, with the tokenizer of the demo model."""

import os
from pathlib import Path

import torch
import transformers as hf

from tests.demo_images.checkpoint import TEMPLATE
from tests.support.demo import demo_model
from tests.support.vision import FAKE, GLOBAL, PLACEHOLDER

TILE = 512  # pixels of a side
_TILES = 4  # of a side of the largest image
_PLACES = 6  # tiles of a side that have tokens of their own
_VOCABULARY = 49280


def write(folder: Path) -> None:
    """Write two checkpoints of the same weights: `folder`/whole makes one tile of an image, and `folder`/split cuts it.

    They take a gigabyte, and half a minute.
    """
    sides = range(1, _PLACES + 1)
    places = [f"<row_{row}_col_{col}>" for row in sides for col in sides]
    tokenizer = tokenizer_with(GLOBAL, *places, FAKE, PLACEHOLDER)
    tokenizer.chat_template = TEMPLATE
    torch.manual_seed(0)
    config = _config(tokenizer.convert_tokens_to_ids(PLACEHOLDER))
    model = hf.AutoModelForImageTextToText.from_config(config, dtype=torch.bfloat16)
    silence(model.lm_head, tokenizer)
    model.save_pretrained(folder / "whole")
    (folder / "split").mkdir()
    weights = "model.safetensors"
    os.link(folder / "whole" / weights, folder / "split" / weights)
    for name, tiles in (("whole", 1), ("split", _TILES)):
        config.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
        edges = {"size": {"longest_edge": tiles * TILE}, "max_image_size": {"longest_edge": TILE}}
        hf.SmolVLMImageProcessorPil(do_image_splitting=tiles > 1, **edges).save_pretrained(folder / name)


def tokenizer_with(*special: str) -> hf.PreTrainedTokenizerBase:
    """Return the tokenizer of the demo model with further special tokens."""
    file = demo_model()
    tokenizer = hf.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    tokenizer.add_special_tokens({"additional_special_tokens": [*special]})
    return tokenizer


def silence(head: torch.nn.Linear, tokenizer: hf.PreTrainedTokenizerBase) -> None:
    """Make tokens without a text of their own, such as parts of a character, never the likeliest. The text of a stream
    waits for the rest of the character, and the gap before it would be that of several steps."""
    texts = tokenizer.batch_decode([[token] for token in range(len(tokenizer))], skip_special_tokens=True)
    without = [token for token, text in enumerate(texts) if not text or "\ufffd" in text]
    with torch.no_grad():
        head.weight[without] = 0
        head.weight[len(texts) :] = 0


def _config(placeholder: int) -> hf.SmolVLMConfig:
    """Return the published configuration."""
    text = {
        "model_type": "llama",
        "vocab_size": _VOCABULARY,
        "hidden_size": 960,
        "intermediate_size": 2560,
        "num_hidden_layers": 32,
        "num_attention_heads": 15,
        "num_key_value_heads": 5,
        "head_dim": 64,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 100000,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    vision = {
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "image_size": TILE,
        "patch_size": 16,
    }
    return hf.SmolVLMConfig(
        text_config=text,
        vision_config=vision,
        scale_factor=4,
        image_token_id=placeholder,
        pad_token_id=2,
        tie_word_embeddings=False,
        architectures=["SmolVLMForConditionalGeneration"],
    )
