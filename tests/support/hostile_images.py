"""Image files of attackers, and files that are no images."""

import io
import struct
import zlib
from collections.abc import Iterator

from PIL import Image

from tests.support.image_files import PNG, in_file, pattern, png, png_header


def gif(width: int, height: int, frame: tuple[int, int]) -> bytes:
    """Return a GIF file whose first frame may have another size than its screen."""
    screen = b"GIF89a" + struct.pack("<HHBBB", width, height, 0x80, 0, 0) + bytes(6)
    return screen + b"," + struct.pack("<HHHHB", 0, 0, *frame, 0) + b"\x02\x02\x4c\x01\0;"


def jpeg_with(size: tuple[int, int]) -> bytes:
    """Return a JPEG file that declares another size than it has."""
    data = bytearray(in_file(pattern(8, 8), "JPEG"))
    frame = data.index(b"\xff\xc0")
    data[frame + 5 : frame + 9] = struct.pack(">HH", size[1], size[0])
    return bytes(data)


def webp(chunk: bytes, data: bytes) -> bytes:
    """Return a WebP file of one chunk."""
    content = b"WEBP" + chunk + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(content)) + content


def webp_canvas(width: int, height: int) -> bytes:
    """Return the head of a WebP file with a canvas of that size."""
    sides = b"".join((side - 1).to_bytes(3, "little") for side in (width, height))
    return webp(b"VP8X", b"\0\0\0\0" + sides)


def endless_scans(side: int, scans: int) -> bytes:
    """Return a progressive JPEG file whose last scan repeats: a small file that takes long."""
    data = in_file(Image.new("RGB", (side, side), (9, 9, 9)), "JPEG", progressive=True)
    last = data.rindex(b"\xff\xda")
    return data[:-2] + data[last:-2] * scans + data[-2:]


def too_large() -> Iterator[tuple[str, bytes]]:
    """Yield names and files that declare gigapixels."""
    yield "png", png(png_header(60_000, 60_000), (b"IDAT", zlib.compress(bytes(1000))), (b"IEND", b""))
    yield "png-wide", png(png_header(2**31 - 1, 2), (b"IDAT", b""), (b"IEND", b""))
    yield "gif", gif(65_535, 65_535, (65_535, 65_535))
    yield "gif-frame", gif(1, 1, (65_535, 65_535))
    yield "jpeg", jpeg_with((65_500, 65_500))
    yield "webp", webp_canvas(16_384, 16_384)
    yield "webp-lossless", webp(b"VP8L", b"\x2f" + (16_383 | 16_383 << 14).to_bytes(4, "little") + bytes(40))
    yield "webp-lossy", webp(b"VP8 ", b"\x10\0\0\x9d\x01\x2a" + struct.pack("<HH", 16_383, 16_383) + bytes(40))


def damaged() -> Iterator[tuple[str, bytes]]:
    """Yield names and files that are no images, though they begin as images do."""
    for kind in ("PNG", "JPEG", "WEBP", "GIF"):
        data = in_file(pattern(90, 70), kind)
        for part in (16, len(data) // 3, len(data) - 60):
            yield f"{kind.lower()}-cut-at-{part}", data[:part]
    interlaced = io.BytesIO()
    pattern(90, 70, "P").save(interlaced, "GIF", interlace=1)
    yield "gif-interlaced-cut", interlaced.getvalue()[:-300]
    yield "png-of-no-width", png(png_header(0, 5), (b"IDAT", zlib.compress(b"")), (b"IEND", b""))
    yield "png-of-no-height", png(png_header(5, 0), (b"IDAT", zlib.compress(b"")), (b"IEND", b""))
    yield "jpeg-of-no-height", jpeg_with((8, 0))
    yield "png-without-pixels", png(png_header(5, 5), (b"IEND", b""))
    yield "png-of-too-few-pixels", png(png_header(50, 50), (b"IDAT", zlib.compress(bytes(9))), (b"IEND", b""))
    yield "png-with-a-wrong-checksum", in_file(pattern(9, 9)).replace(b"IHDR", b"IHDR"[:3] + b"S")
    yield "png-of-odd-bits", png(png_header(5, 5, bits=3), (b"IDAT", zlib.compress(bytes(90))), (b"IEND", b""))
    text = zlib.compress(bytes(1 << 26))
    yield "png-text-bomb", png(png_header(5, 5), (b"zTXt", b"k\0\0" + text), (b"IEND", b""))
    yield "webp-of-nothing", webp(b"VP8 ", b"")
    yield "jpeg-of-one-marker", b"\xff\xd8\xff"
    yield "png-signature", PNG
    yield "gif-signature", b"GIF89a"


def other_formats() -> Iterator[tuple[str, bytes]]:
    """Yield names of formats that are not allowed, and files of them."""
    image = pattern(9, 9)
    for kind in ("BMP", "TIFF", "ICO", "AVIF"):
        yield kind, in_file(image, kind)
    yield "JPEG 2000", in_file(image, "JPEG2000")
    yield "HEIC", b"\0\0\0\x18ftypheic\0\0\0\0mif1heic"
    yield "JPEG XL", b"\xff\x0a" + bytes(20)
    yield "PSD", b"8BPS\0\1" + bytes(20)
    yield "PDF", b"%PDF-1.7\n"
    yield "SVG", b'<svg xmlns="http://www.w3.org/2000/svg"/>'
