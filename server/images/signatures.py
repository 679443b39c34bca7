"""The names of image formats, for errors: by the first bytes of a file."""

# Offset and bytes. WebP and HEIF keep their names in containers.
_SIGNATURES = (
    ("PNG", 0, b"\x89PNG\r\n\x1a\n"),
    ("JPEG", 0, b"\xff\xd8\xff"),
    ("GIF", 0, b"GIF8"),
    ("WebP", 8, b"WEBP"),
    ("AVIF", 4, b"ftypavi"),
    ("HEIC", 4, b"ftyphe"),
    ("HEIC", 4, b"ftypmif1"),
    ("JPEG 2000", 4, b"jP  "),
    ("JPEG 2000", 0, b"\xff\x4f\xff\x51"),
    ("JPEG XL", 4, b"JXL "),
    ("JPEG XL", 0, b"\xff\x0a"),
    ("TIFF", 0, b"II*\0"),
    ("TIFF", 0, b"MM\0*"),
    ("BMP", 0, b"BM"),
    ("ICO", 0, b"\0\0\1\0"),
    ("PSD", 0, b"8BPS"),
    ("PDF", 0, b"%PDF"),
    ("SVG", 0, b"<svg"),
    ("SVG", 0, b"<?xml"),
)
ALLOWED = ("PNG", "JPEG", "WebP", "GIF")


def name_of(data: bytes) -> str | None:
    """Return the name of the format of an image file; None for an unknown format."""
    return next((name for name, offset, start in _SIGNATURES if data.startswith(start, offset)), None)
