"""The fields of the vision tower of Kimi K2.5 in the metadata of GGUF files."""

from numaserve.workers.models.config.fields import Fields

_MAX_SIDE, _MAX_PIXELS, _MAX_PATCH, _MAX_FACTOR = 1 << 16, 1 << 32, 1 << 10, 16


def moonvit_vision(metadata: Fields) -> dict[str, object]:
    """Return the fields of `vision_config` that files state in another form. They state the side of an image whose
    patches have all positions."""
    tile = metadata.integer("clip.vision.image_size", 1, _MAX_SIDE)
    side = tile // metadata.integer("clip.vision.patch_size", 1, tile)
    factor = metadata.integer("clip.vision.projector.scale_factor", 1, _MAX_FACTOR, 2)
    return {
        "pos_emb_height": side,
        "pos_emb_width": side,
        "merge_kernel_size": [factor, factor],
        "projector_ln_eps": metadata.values.get("clip.vision.attention.layer_norm_epsilon"),
    }


def moonvit_sizes(metadata: Fields) -> dict[str, object]:
    """Return the bound of an image's patches, which files state in pixels."""
    pixels = metadata.optional_integer("clip.vision.image_max_pixels", 1, _MAX_PIXELS)
    if pixels is None:
        return {}
    return {"in_patch_limit": pixels // metadata.integer("clip.vision.patch_size", 1, _MAX_PATCH) ** 2}
