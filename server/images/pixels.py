"""From the bytes of an image file to the pixels of tiles. Only the confined process imports this module.

Pillow imports parts when they are first needed. The imports here bring all of them that reading the allowed formats
needs, because the process cannot open files later.
"""

import binascii
import io
import warnings

from numaserve.server.images.geometry import Layout, Size, UnsupportedSize, lay_out
from numaserve.server.images.signatures import ALLOWED, name_of
from numaserve.server.images.types import SMALLER, ImageLimits, ImageProblem, too_many_bytes
from numaserve.workers.interface.images import ImageInput
from PIL import (
    GifImagePlugin,
    Image,
    ImageOps,
    ImagePalette,
    JpegImagePlugin,
    MpoImagePlugin,
    PngImagePlugin,
    TiffImagePlugin,
    UnidentifiedImageError,
    WebPImagePlugin,
)

_FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
# Modules whose names nothing here uses: palettes, JPEG files of several images (from phones), and EXIF.
_IMPORTED = (
    GifImagePlugin,
    ImagePalette,
    JpegImagePlugin,
    MpoImagePlugin,
    PngImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)
_WHITE = (255, 255, 255, 255)
_MESSAGE_CHARACTERS = 200


def load() -> None:
    """Import what Pillow would import for the first image."""
    Image.preinit()


def from_base64(text: bytes) -> bytes:
    """Return the bytes of an image file. Raises `ImageProblem`."""
    try:
        # Line breaks are in the output of many encoders.
        return binascii.a2b_base64(text.translate(None, b"\t\n\r "), strict_mode=True)
    except binascii.Error as error:
        raise ImageProblem(
            "invalid_image", f"The image is not valid base64: {error}. Encode the image file in standard base64."
        ) from None


def to_tiles(data: bytes, settings: ImageInput, limits: ImageLimits) -> tuple[Layout, list[bytes]]:
    """Return the layout of an image and the pixels of its tiles, each uint8 [height, width, 3].

    An animation is its first frame. Raises `ImageProblem`.
    """
    if len(data) > limits.file_bytes:
        raise too_many_bytes(len(data), limits)
    try:
        with warnings.catch_warnings():  # about details of a file that the client cannot see
            warnings.simplefilter("ignore")
            return _cut(_in_rgb(_upright(_open(data, limits))), settings, limits.pixels)
    except ImageProblem:
        raise
    except Image.DecompressionBombError:
        raise _too_large("The image has more pixels than allowed", limits) from None
    except MemoryError:
        raise ImageProblem("image_too_large", f"Decoding the image takes too much memory. {SMALLER}") from None
    except Exception as error:  # Pillow raises some dozen kinds for damaged files
        reason = str(error)[:_MESSAGE_CHARACTERS].rstrip(".")
        raise ImageProblem(
            "invalid_image", f"The {name_of(data)} image is damaged: {reason}. Send an intact file."
        ) from None


def _open(data: bytes, limits: ImageLimits) -> Image.Image:
    """Return the image, whose pixels are not decoded yet."""
    # Pillow itself refuses twice this number, also where it allocates memory before it returns.
    Image.MAX_IMAGE_PIXELS = limits.file_pixels
    try:
        image = Image.open(io.BytesIO(data), formats=_FORMATS)
    except UnidentifiedImageError:
        name = name_of(data)
        found = "The image's format is unknown" if name is None else f"The image is in the format {name}"
        if name in ALLOWED:
            raise ImageProblem(
                "invalid_image", f"The header of the {name} image is damaged. Send an intact file."
            ) from None
        raise ImageProblem(
            "invalid_image", f"{found}; allowed are PNG, JPEG, WebP and GIF. Convert the image."
        ) from None
    size = Size(*image.size)
    if size.pixels > limits.file_pixels:
        raise _too_large(f"The image has {size.width} x {size.height} pixels", limits)
    if image.mode.startswith("I"):
        # Pillow, and with it transformers, would turn all values above 255 into white. Other conversions were rejected:
        # the model would see another image than with transformers.
        raise ImageProblem(
            "invalid_image", "The image has 16 bits for a grey value; the limit is 8 bits. Convert the image to 8 bits."
        )
    return image


def _upright(image: Image.Image) -> Image.Image:
    """Decode the pixels, and apply the orientation of EXIF."""
    ImageOps.exif_transpose(image, in_place=True)
    return image


def _in_rgb(image: Image.Image) -> Image.Image:
    """Return the image in RGB, on white where it is transparent (`convert_to_rgb` of transformers)."""
    if "A" in image.getbands() or image.info.get("transparency") is not None:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, _WHITE), image).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


def _cut(image: Image.Image, settings: ImageInput, max_pixels: int) -> tuple[Layout, list[bytes]]:
    try:
        layout = lay_out(Size(*image.size), settings, max_pixels)
    except UnsupportedSize as error:
        raise ImageProblem("invalid_image", str(error)) from None
    resample, tile, whole = Image.Resampling(settings.resample), layout.tile, image
    for size in layout.sizes:
        image = image.resize(size, resample)
    if layout.canvas is not None:
        canvas = Image.new("RGB", layout.canvas)
        canvas.paste(image)
        image = canvas
    else:
        whole = image
    tiles = [
        image.crop((x, y, x + tile.width, y + tile.height)).tobytes()
        for y in range(0, image.height, tile.height)
        for x in range(0, image.width, tile.width)
    ]
    if layout.rows:
        tiles.append(whole.resize(tile, resample).tobytes())
    return layout, tiles


def _too_large(found: str, limits: ImageLimits) -> ImageProblem:
    return ImageProblem("image_too_large", f"{found}; the limit is {limits.file_pixels} pixels. {SMALLER}")
