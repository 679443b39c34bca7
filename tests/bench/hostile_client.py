"""A client that sends image files of attackers, and files that only look so, from an address of its own."""

import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import httpx
import numpy as np
from PIL import Image

from tests.bench.image_requests import JSON, PATIENCE_S, of_pixels
from tests.support.hostile_images import damaged, endless_scans, other_formats, too_large
from tests.support.image_files import files, image_part, in_file, pattern, png, png_header
from tests.support.vision import PLACEHOLDER

REFUSED, ACCEPTED = "refused", "accepted"
_ADDRESS = "127.0.0.2"  # clients without keys are told apart by their addresses
_IN_FLIGHT = 4
_SCANS = 3000  # of a file that takes longer than a decoder may
_MOST_IMAGES = 64  # the default of --max-images
_LARGE_SIDE, _TOO_LARGE_SIDE = 2600, 2800  # pixels of a side of noise: below and above the default of 20 MiB
_ODD = (
    "png-transparent-palette",
    "png-3-of-4-bits",
    "png-2-of-16-bits",
    "png-interlaced-6",
    "png-animated",
    "png-text",
    "jpeg-CMYK-False",
    "jpeg-icc",
    "jpeg-turned-6",
    "webp-animated",
    "gif-animated",
)


@cache
def bodies(kind: str) -> list[bytes]:
    """Return the bodies of requests that the server must refuse, or of those that it must answer, without their last
    brace (see `send_all`)."""
    made = _refused() if kind == REFUSED else _accepted()
    return [
        json.dumps({"messages": [{"role": "user", "content": parts}], "max_tokens": 1, "temperature": 0}).encode()[:-1]
        for parts in made
    ]


def send_all(url: str, kind: str, salt: str) -> Counter[int]:
    """Send each request once, some at a time, and return how often each status came. The server finds nothing of
    requests with another `salt`."""
    end = f', "cache_salt": {json.dumps(salt)}}}'.encode()
    transport = httpx.HTTPTransport(local_address=_ADDRESS)
    path = f"{url}/v1/chat/completions"
    with (
        httpx.Client(transport=transport, timeout=PATIENCE_S, headers=JSON) as client,
        ThreadPoolExecutor(_IN_FLIGHT) as pool,
    ):
        return Counter(pool.map(lambda body: client.post(path, content=body + end).status_code, bodies(kind)))


def _refused() -> Iterator[list[dict[str, Any]]]:
    for data in (data for group in (too_large(), damaged(), other_formats()) for _, data in group):
        yield [image_part(data)]
    yield [image_part(endless_scans(4000, _SCANS))]
    yield [image_part(png(png_header(7000, 7000), (b"IDAT", b""), (b"IEND", b"")))]
    yield [image_part(in_file(pattern(9, 9, "I;16")))]
    yield [image_part(_noise(_TOO_LARGE_SIDE))]
    yield [image_part(in_file(pattern(9, 9)))] * (_MOST_IMAGES + 1)
    yield [{"type": "text", "text": f"words {PLACEHOLDER} words"}]
    yield [{"type": "image_url", "image_url": {"url": "data:image/png;base64,?"}}]


def _accepted() -> Iterator[list[dict[str, Any]]]:
    named = dict(files())
    for name in _ODD:
        yield [image_part(named[name], detail="low")]
    for size in ((1, 65_535), (65_535, 1), (1, 1), (7000, 7000)):
        yield [image_part(in_file(Image.new("RGB", size, (1, 2, 3))))]
    yield [image_part(_noise(_LARGE_SIDE))]
    yield [image_part(in_file(pattern(9, 9)), detail="low")] * _MOST_IMAGES


def _noise(side: int) -> bytes:
    return of_pixels(np.random.default_rng(side).integers(0, 256, (side, side, 3)))
