"""The vision tower of a GGUF model: a file of its own, `mmproj`, as llama.cpp's converter writes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from numaserve.workers.layers.mlp import PlainMlp
from numaserve.workers.layers.vision import Tower
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.gguf_gemma import (
    mean_rows,
    patch_forms,
    patch_vision,
    pooled_forms,
    pooled_text,
    pooled_vision,
)
from numaserve.workers.models.config.gguf_grid import grid_sizes, grid_text, grid_vision
from numaserve.workers.models.config.gguf_llama4 import llama4_vision, llama4_widths
from numaserve.workers.models.config.gguf_moonvit import moonvit_sizes, moonvit_vision
from numaserve.workers.models.config.gguf_names import Shape, shape_of
from numaserve.workers.models.config.gguf_paddleocr import paddleocr_sizes, paddleocr_vision
from numaserve.workers.models.config.gguf_pixtral import pixtral_outer, pixtral_text, pixtral_vision
from numaserve.workers.models.config.grid_vision import GRID_PROJECTOR
from numaserve.workers.models.config.llama4_vision import LLAMA4_PROJECTOR
from numaserve.workers.models.config.moonvit import MOONVIT_PROJECTOR
from numaserve.workers.models.config.paddleocr_vision import PADDLEOCR_PROJECTOR
from numaserve.workers.models.config.pixtral import PIXTRAL_PROJECTOR

if TYPE_CHECKING:
    from gguf import ReaderTensor
    from numaserve.workers.models.config.gguf_file import GGUFFile

_KEYS = {  # after "clip.vision."
    "image_size": "image_size",
    "patch_size": "patch_size",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "block_count": "num_hidden_layers",
    "attention.head_count": "num_attention_heads",
    "attention.layer_norm_epsilon": "layer_norm_eps",
}
_TYPES = "clip.vision.projector_type", "clip.projector_type"
_EDGES = 4  # tiles along the longest edge of an image, in all published models; older files do not say it


@dataclass(frozen=True)
class _Kind:
    """Towers with one type of projector: the token that stands for a part of an image, and what files state of them
    alone, as fields of `vision_config`, of `text_config`, of the image processor and of the whole config.json. `frame`
    has the tokens around an image by their fields in config.json."""

    placeholder: str
    sizes: Callable[[Fields], dict[str, object]]
    vision: Callable[[Fields], dict[str, object]] = lambda metadata: {}
    text: Callable[[Fields, GGUFFile, Fields], dict[str, object]] = lambda text, model, metadata: {}
    outer: Callable[[Fields], dict[str, object]] = lambda metadata: {}
    widths: Callable[[Mapping[str, Shape]], dict[str, object]] = lambda shapes: {}  # fields of `vision_config` too
    gated: bool = False  # files may state the activation of a gate
    frame: Mapping[str, str] = field(default_factory=dict)


def projector_type(file: GGUFFile) -> object:
    """Return the type of the projector of a vision tower; None without a tower."""
    return next((found for key in _TYPES if (found := file.scalar(key))), None)


def with_projector(text: Fields, model: GGUFFile, metadata: Fields, tower: GGUFFile) -> Fields:
    """Return the fields of config.json of a multimodal `model`, from the fields of its text model, and the `metadata`
    and tensors of the `tower`. Raises `OperatorError` for a tower that is not supported."""
    kind = _kind(metadata)
    if not kind.gated:
        metadata.refuse("clip.use_silu", False)
    vision = {key: metadata.values.get(f"clip.vision.{name}") for name, key in _KEYS.items()}
    shapes = {tensor.name: shape_of(tensor) for tensor in tower.tensors}
    fields = {
        "text_config": {**text.values, **kind.text(text, model, metadata)},
        "vision_config": vision | kind.vision(metadata) | kind.widths(shapes),
        "scale_factor": metadata.values.get("clip.vision.projector.scale_factor"),
        "tie_word_embeddings": text.values["tie_word_embeddings"],
        "image_token_id": _placeholder(model, text, kind.placeholder),
        **{key: _placeholder(model, text, token) for key, token in kind.frame.items()},
        **kind.outer(metadata),
    }
    return Fields(fields, text.where)


def processor_fields(file: GGUFFile, metadata: Fields) -> Fields:
    """Return the settings of the image processor, as far as the tower's file has some."""
    mean, std = (file.floats(f"clip.vision.image_{name}") for name in ("mean", "std"))
    return Fields({**_kind(metadata).sizes(metadata), "image_mean": mean, "image_std": std}, metadata.where)


def as_in_projector(tower: Tower, tensors: Mapping[str, ReaderTensor]) -> Tower:
    """Return the tower with the names of a file with these tensors. Older files call both matrices of an MLP by the
    name of the other."""
    down = tensors.get("v.blk.0.ffn_down.weight")
    if down is None or shape_of(down)[-1] != tower.hidden:
        return tower
    blocks = []
    for block in tower.blocks:
        mlp = block.mlp
        if isinstance(mlp, PlainMlp):
            block = replace(block, mlp=replace(mlp, gguf=replace(mlp.gguf, up=mlp.gguf.down, down=mlp.gguf.up)))  # noqa: PLW2901
        blocks.append(block)
    return replace(tower, blocks=tuple(blocks))


def _tile_sizes(metadata: Fields) -> dict[str, object]:
    tile = metadata.integer("clip.vision.image_size", 1, 1 << 16)
    edge = metadata.integer("clip.vision.preproc_image_size", 1, 1 << 16, _EDGES * tile)
    return {"max_image_size": {"longest_edge": tile}, "size": {"longest_edge": edge}}


def _placeholder(model: GGUFFile, text: Fields, placeholder: str) -> int:
    tokens = enumerate(model.texts("tokenizer.ggml.tokens"))
    found = next((index for index, token in tokens if token == placeholder), None)
    if found is None:
        raise text.error(
            f"the vocabulary has no token {placeholder}, which stands for a part of an image; use a model that takes"
            " images, or one without an mmproj file"
        )
    return found


_GEMMA4 = _Kind(
    "<|image|>",
    lambda metadata: {},
    text=pooled_text,
    frame={"boi_token_id": "<|image>", "eoi_token_id": "<image|>"},
)
_KINDS = {
    "idefics3": _Kind("<image>", _tile_sizes),
    GRID_PROJECTOR: _Kind("<|image_pad|>", grid_sizes, grid_vision, grid_text),
    LLAMA4_PROJECTOR: _Kind("<|patch|>", lambda metadata: {}, llama4_vision, widths=llama4_widths),
    PADDLEOCR_PROJECTOR: _Kind(
        "<|IMAGE_PLACEHOLDER|>", grid_sizes, paddleocr_vision, grid_text, widths=paddleocr_sizes
    ),
    PIXTRAL_PROJECTOR: _Kind("[IMG]", lambda metadata: {}, pixtral_vision, pixtral_text, pixtral_outer, gated=True),
    "gemma3": _Kind(
        "<image_soft_token>",
        lambda metadata: {},
        outer=mean_rows,
        frame={"boi_token_index": "<start_of_image>", "eoi_token_index": "<end_of_image>"},
    ),
    MOONVIT_PROJECTOR: _Kind("<|media_pad|>", moonvit_sizes, moonvit_vision),
    "gemma4v": replace(_GEMMA4, vision=pooled_vision, widths=pooled_forms),
    "gemma4uv": replace(_GEMMA4, vision=patch_vision, widths=patch_forms),
}


def _kind(metadata: Fields) -> _Kind:
    """Return the kind of a tower of a type that some family has."""
    return next(_KINDS[str(found)] for key in _TYPES if (found := metadata.values.get(key)))
