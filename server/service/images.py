"""The image input of a server: its limits, and its memory."""

import math

from numaserve.server.config.serve import ServeConfig
from numaserve.server.generation.vision import Vision, special_text
from numaserve.server.images.decoder import ImageDecoder
from numaserve.server.images.expansion import Expansion, expansion_of
from numaserve.server.images.geometry import most_tiles
from numaserve.server.images.store import ImageStore
from numaserve.server.images.types import ImageLimits
from numaserve.server.metrics.metrics import Metrics
from numaserve.server.tokenizer.types import TokenizerError, TokenizerProtocol
from numaserve.shm_comm.segment import create_memory
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.images import ImageInput
from numaserve.workers.planning.needs import GIB

_MEMFD_NAME = "numaserve-images"
_MIB = 1 << 20
_LARGEST_REQUESTS = 3  # in the store: one, half of the tiles for earlier images, and tiles for other clients


def image_limits(config: ServeConfig) -> ImageLimits:
    """Return the limits of the images of a request."""
    return ImageLimits(
        images=config.max_images,
        file_bytes=int(config.max_image_file_mib * _MIB),
        file_pixels=config.max_image_file_pixels,
        pixels=config.settings.max_image_pixels,
    )


def store_tiles(config: ServeConfig, settings: ImageInput) -> int:
    """Return the number of tiles of the image store."""
    return int(config.image_memory_gib * GIB) // settings.tile_bytes


def create_image_store(config: ServeConfig, settings: ImageInput) -> ImageStore:
    """Return the image store of a server.

    Raises `OperatorError` if a tile or the largest request does not fit, and `OSError` if the kernel refuses the
    memory.
    """
    smallest, pixels = settings.sizes.smallest, config.settings.max_image_pixels
    if pixels < smallest:
        raise OperatorError(
            f"max_image_pixels is {pixels}, and the smallest image of the model has {smallest} pixels: set it to at "
            f"least {smallest}"
        )
    each = most_tiles(settings, pixels)
    tiles = store_tiles(config, settings)
    needed = _LARGEST_REQUESTS * config.max_images * each
    if tiles < needed:
        least = math.ceil(needed * settings.tile_bytes / GIB * 100) / 100
        raise OperatorError(
            f"image_memory_gib is {config.image_memory_gib:g}, enough for {tiles} tiles of images, and "
            f"{config.max_images} images of up to {each} tiles need {needed}: set image_memory_gib to at least "
            f"{least:g}, or lower max_images or max_image_pixels"
        )
    fd = create_memory(_MEMFD_NAME, tiles * settings.tile_bytes, lambda _fd: None)
    return ImageStore(fd, settings, tiles)


def check_special_tokens(settings: ImageInput, tokenizer: TokenizerProtocol) -> None:
    """Raise `TokenizerError` unless the tokenizer has the special tokens of images."""
    special_text(settings.token, tokenizer)
    expansion = _expansion(settings, tokenizer)
    for text in expansion.tokens if settings.frame is None else ():
        if len(tokenizer.encode(text, add_special_tokens=False)) != 1:
            raise TokenizerError(
                f"the tokenizer has no special token {text}, which stands around images; download the tokenizer's "
                "files again"
            )


def make_vision(config: ServeConfig, store: ImageStore, tokenizer: TokenizerProtocol, metrics: Metrics) -> Vision:
    """Return the image input of the API. Raises `TokenizerError` for a tokenizer without the placeholder."""
    settings = store.settings
    placeholder = special_text(settings.token, tokenizer)
    decoder = ImageDecoder(store, image_limits(config), metrics)
    return Vision(settings, placeholder, decoder, _expansion(settings, tokenizer))


def _expansion(settings: ImageInput, tokenizer: TokenizerProtocol) -> Expansion:
    return expansion_of(settings, lambda token: special_text(token, tokenizer))
