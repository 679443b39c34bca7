"""Image files for tests, of every allowed format and mode."""

import io
import random
import struct
import zlib
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

from numaserve.workers.interface.images import ImageInput, Tiles
from PIL import Image

PNG = b"\x89PNG\r\n\x1a\n"
# The passes of interlaced PNG files: the first pixel, and the distances to the next column and row.
_ADAM7 = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
HALF = (0.5, 0.5, 0.5)
# As in the published SmolVLM-500M, but with small tiles.
SETTINGS = ImageInput(
    sizes=Tiles(side=64, longest_edge=256, split=True, rows=4),
    resample=1,
    do_resize=True,
    rescale=1 / 255,
    mean=HALF,
    std=HALF,
    token=9,
    text="idefics3",
)


def pattern(width: int, height: int, mode: str = "RGB", salt: int = 0) -> Image.Image:
    """Return an image in which every channel and every pixel differs."""
    bands = [Image.linear_gradient("L"), Image.radial_gradient("L")]
    bands += [bands[0].transpose(Image.Transpose.ROTATE_90), bands[1].point(lambda value: (3 * value + salt) % 256)]
    image = Image.merge("RGBA", bands).resize((width, height), Image.Resampling.BICUBIC)
    if mode == "I;16":
        return image.convert("I").point(lambda value: value * 257).convert("I;16")
    return image.convert("RGB").convert(mode) if mode in {"CMYK", "YCbCr", "P", "1"} else image.convert(mode)


def in_file(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """Return the image in a file of the format `kind`."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def image_part(file: bytes, **more: Any) -> dict[str, Any]:
    """Return the part of a chat message with an image, and `more` fields, such as its detail."""
    url = f"data:image/png;base64,{b64encode(file).decode()}"
    return {"type": "image_url", "image_url": {"url": url, **more}}


def png(*chunks: tuple[bytes, bytes]) -> bytes:
    """Return a PNG file of these types and contents of chunks."""
    return PNG + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


def png_header(width: int, height: int, bits: int = 8, colour: int = 2, interlaced: int = 0) -> tuple[bytes, bytes]:
    """Return the chunk that declares the size."""
    return b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, interlaced)


def drawn_png(bits: int, colour: int, *, interlaced: bool = False) -> bytes:
    """Return a PNG file of random pixels, of a type that Pillow does not write."""
    draw, width, height = random.Random(bits * 7 + colour), 70, 90
    pixel_bits = bits * {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour]
    rows = bytearray()
    for x, y, across, down in _ADAM7 if interlaced else [(0, 0, 1, 1)]:
        row_bytes = -(-(-(-(width - x) // across) * pixel_bits) // 8)
        for _ in range(y, height, down):
            rows += b"\0" + draw.randbytes(row_bytes)
    palette = [(b"PLTE", draw.randbytes(3 << bits)), (b"tRNS", draw.randbytes(1 << bits))] if colour == 3 else []
    header = png_header(width, height, bits, colour, int(interlaced))
    return png(header, *palette, (b"IDAT", zlib.compress(rows)), (b"IEND", b""))


def exif(orientation: int) -> Image.Exif:
    """Return the EXIF that says how to turn an image."""
    made = Image.Exif()
    made[0x0112] = orientation
    return made


def files() -> Iterator[tuple[str, bytes]]:
    """Yield names and contents of files of all formats and modes."""
    for mode in ("1", "L", "LA", "P", "RGB", "RGBA"):
        yield f"png-{mode}", in_file(pattern(70, 90, mode))
    yield "png-transparent-palette", in_file(pattern(70, 90, "P"), transparency=3)
    yield "png-transparencies", in_file(pattern(70, 90, "P"), transparency=bytes(range(256)))
    yield "png-transparent-colour", in_file(pattern(70, 90), transparency=(12, 13, 14))
    for colour, depths in {0: (1, 2, 4), 2: (16,), 3: (1, 2, 4, 8), 4: (16,), 6: (16,)}.items():
        for bits in depths:
            yield f"png-{colour}-of-{bits}-bits", drawn_png(bits, colour)
    for bits, colour in ((1, 0), (8, 2), (4, 3), (16, 6)):
        yield f"png-interlaced-{colour}", drawn_png(bits, colour, interlaced=True)
    yield "png-icc", in_file(pattern(70, 90), icc_profile=b"a colour profile" * 40)
    yield "png-text", in_file(pattern(70, 90), pnginfo=_text())
    yield "png-animated", in_file(pattern(70, 90), save_all=True, append_images=[pattern(70, 90, salt=9)])
    for mode in ("L", "RGB", "CMYK", "YCbCr"):
        for progressive in (False, True):
            yield f"jpeg-{mode}-{progressive}", in_file(pattern(70, 90, mode), "JPEG", progressive=progressive)
    yield "jpeg-icc", in_file(pattern(70, 90), "JPEG", icc_profile=b"a colour profile" * 9000)
    yield "jpeg-comment", in_file(pattern(70, 90), "JPEG", comment=b"a comment")
    yield "jpeg-of-two", in_file(pattern(70, 90), "MPO", save_all=True, append_images=[pattern(35, 45)])
    for mode in ("RGB", "RGBA"):
        for lossless in (False, True):
            yield f"webp-{mode}-{lossless}", in_file(pattern(70, 90, mode), "WEBP", lossless=lossless)
    yield "webp-icc", in_file(pattern(70, 90), "WEBP", icc_profile=b"a colour profile" * 40)
    for kind in ("WEBP", "GIF"):
        more = [pattern(70, 90, salt=salt) for salt in (60, 120)]
        yield f"{kind.lower()}-animated", in_file(pattern(70, 90), kind, save_all=True, append_images=more)
    for mode in ("1", "L", "P", "RGBA"):
        yield f"gif-{mode}", in_file(pattern(70, 90, mode), "GIF")
    yield "gif-transparent", in_file(pattern(70, 90, "P"), "GIF", transparency=5)
    yield "gif-interlaced", in_file(pattern(70, 90, "P"), "GIF", interlace=1)
    for kind in ("PNG", "JPEG", "WEBP"):
        for orientation in range(1, 9):
            yield f"{kind.lower()}-turned-{orientation}", in_file(pattern(90, 50), kind, exif=exif(orientation))


def _text() -> Any:
    from PIL.PngImagePlugin import PngInfo

    info = PngInfo()
    info.add_text("Comment", "words " * 1000, zip=True)
    info.add_itxt("Title", "ein Bild ✓", lang="de")
    return info
