"""Tiny checkpoints as Kimi Linear and Kimi K2.5 are published."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import transformers as hf
from safetensors.torch import load_file, save_file

from tests.support.families.row import LATENT_HEADS, rope, sizes

# The names that transformers 5.24 writes, which no version of it reads, and the published names.
_NAMES = (
    ("model.language_model.", "language_model.model."),
    ("language_model.model.blocks.", "language_model.model.layers."),
    ("model.mm_projector.", "mm_projector."),
    ("vision_tower.encoder.patch_embed.", "vision_tower.patch_embed."),
)
# transformers 5.24 names a dense MLP of Kimi Linear as experts are named, and does not find it there.
_DENSE = re.compile(r"\.block_sparse_moe\.(gate|up|down)_proj\b")
_VISION = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}


def k25_text(hidden: int, heads: int, *, n_routed_experts: int) -> hf.DeepseekV3Config:
    """The configuration of the text model of Kimi K2.5, with as many heads of keys as of queries."""
    latent = {"q_lora_rank": 48, "kv_lora_rank": 64}
    experts = {"n_routed_experts": n_routed_experts, "n_shared_experts": 1}
    return hf.DeepseekV3Config(
        **sizes(hidden, heads, heads, 160, layers=3, **latent, **experts),
        **LATENT_HEADS,
        **rope("yarn", factor=64.0, original_max_position_embeddings=64, mscale=1.0, mscale_all_dim=1.0),
        rms_norm_eps=1e-5,
        first_k_dense_replace=1,
        moe_intermediate_size=72,
        num_experts_per_tok=4,
        n_group=1,
        topk_group=1,
        routed_scaling_factor=2.827,
        num_nextn_predict_layers=0,
    )


def kimi_around(text: hf.PreTrainedConfig) -> hf.PreTrainedConfig:
    """The configuration with that of a DeepSeek-V3 as its text model."""
    return hf.Kimi_K25Config(
        text_config=text.to_dict(),
        vision_config=_VISION | {"pos_emb_height": 4, "pos_emb_width": 4},
        projection_hidden_size=32,
        # Random texts have no token below 3: transformers takes these for others.
        image_token_id=2,
        video_token_id=1,
        tie_word_embeddings=False,
    )


def published_name(name: str) -> str:
    """The name of a module or tensor in a published checkpoint of Kimi K2.5."""
    for ours, theirs in _NAMES:
        if name.startswith(ours):
            name = theirs + name.removeprefix(ours)
    return name


def linear_name(name: str) -> str:
    """The same of Kimi Linear."""
    return _DENSE.sub(r".mlp.\1_proj", name.replace(".forget_gate.", ".").replace(".mlp.", ".block_sparse_moe."))


def rename_tensors(folder: Path, named: Callable[[str], str]) -> None:
    """Give the tensors of a saved checkpoint the names that `named` makes of theirs."""
    for file in folder.glob("*.safetensors"):
        save_file({named(name): each for name, each in load_file(file).items()}, file, {"format": "pt"})
    for index in folder.glob("*.index.json"):
        fields = json.loads(index.read_text())
        fields["weight_map"] = {named(name): file for name, file in fields["weight_map"].items()}
        index.write_text(json.dumps(fields))


def publish_k25(folder: Path) -> None:
    """Give a saved Kimi K2.5 the names that published ones have."""
    rename_tensors(folder, published_name)
    config = folder / "config.json"
    fields = json.loads(config.read_text()) | {"architectures": ["KimiK25ForConditionalGeneration"]}
    fields["text_config"] |= {"model_type": "kimi_k2", "architectures": ["DeepseekV3ForCausalLM"]}
    config.write_text(json.dumps(fields))


def publish_linear(folder: Path) -> None:
    """Give a saved Kimi Linear the names that published ones have, and the fields that list its layers."""
    rename_tensors(folder, linear_name)
    config = folder / "config.json"
    fields = json.loads(config.read_text())
    kinds, mlps = fields.pop("layer_types"), fields.pop("mlp_layer_types")
    listed = {
        key: [number for number, each in enumerate(kinds, start=1) if each == kind]
        for key, kind in (("full_attn_layers", "full_attention"), ("kda_layers", "linear_attention"))
    }
    sizes = {"head_dim": "linear_head_dim", "num_heads": "linear_num_heads"}
    sizes["short_conv_kernel_size"] = "linear_conv_kernel_dim"
    fields["linear_attn_config"] = listed | {key: fields.pop(name) for key, name in sizes.items()}
    fields |= {"first_k_dense_replace": mlps.count("dense"), "mla_use_nope": True}
    config.write_text(json.dumps(fields | {"moe_router_activation_func": "sigmoid"}))
