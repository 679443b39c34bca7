"""Tiny checkpoints with the names and the nesting of Kimi K2.5."""

import json
from pathlib import Path

import transformers as hf
from safetensors.torch import load_file, save_file

# The names that transformers 5.24 writes, which no version of it reads, and the published names.
_NAMES = (
    ("model.language_model.", "language_model.model."),
    ("language_model.model.blocks.", "language_model.model.layers."),
    ("model.mm_projector.", "mm_projector."),
    ("vision_tower.encoder.patch_embed.", "vision_tower.patch_embed."),
)
_VISION = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}


def kimi_around(text: hf.PreTrainedConfig) -> hf.PreTrainedConfig:
    """The configuration with that of a DeepSeek-V3 as its text model."""
    return hf.Kimi_K25Config(
        text_config=text.to_dict(),
        vision_config=_VISION | {"pos_emb_height": 4, "pos_emb_width": 4},
        projection_hidden_size=32,
        tie_word_embeddings=False,
    )


def published_name(name: str) -> str:
    """The name of a module or tensor in a published checkpoint."""
    for ours, theirs in _NAMES:
        if name.startswith(ours):
            name = theirs + name.removeprefix(ours)
    return name


def rename_as_published(folder: Path) -> None:
    """Give a saved checkpoint the names that published ones have."""
    (file,) = folder.glob("*.safetensors")
    save_file({published_name(name): each for name, each in load_file(file).items()}, file, {"format": "pt"})
    config = folder / "config.json"
    fields = json.loads(config.read_text()) | {"architectures": ["KimiK25ForConditionalGeneration"]}
    fields["text_config"] |= {"model_type": "kimi_k2", "architectures": ["DeepseekV3ForCausalLM"]}
    config.write_text(json.dumps(fields))
