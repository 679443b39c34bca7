"""Requests about new images, to any server with OpenAI's chat API."""

import json
import time
from typing import Any

import httpx
import numpy as np
from PIL import Image

from tests.bench.vision_model import TILE
from tests.support.image_files import image_part, in_file

TEXT_OUTPUT = 8
PATIENCE_S = 300.0
JSON = {"Content-Type": "application/json"}

Messages = list[dict[str, Any]]


def new_image(rng: np.random.Generator, side: int = TILE) -> bytes:
    """Return a PNG file with a new image: a coarse pattern with a little noise, as a photograph has."""
    pattern = Image.fromarray(rng.integers(0, 256, (16, 16, 3), np.uint8)).resize(
        (side, side), Image.Resampling.BICUBIC
    )
    noise = rng.integers(-8, 9, (side, side, 3))
    return of_pixels(np.asarray(pattern).astype(np.int16) + noise)


def of_pixels(pixels: np.ndarray) -> bytes:
    """Return a PNG file with these pixels."""
    return in_file(Image.fromarray(pixels.clip(0, 255).astype(np.uint8)))


def question(file: bytes) -> Messages:
    """Return a conversation that asks about the image in a PNG file."""
    parts = [image_part(file), {"type": "text", "text": "What does the image show?"}]
    return [{"role": "user", "content": parts}]


def request(messages: Messages, tokens: int = TEXT_OUTPUT) -> bytes:
    """Return the body of a request. It is made before anything is measured: an image takes milliseconds."""
    body = {"messages": messages, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    return json.dumps(body).encode()


def ask(url: str, data: bytes) -> tuple[float, str]:
    """Return the seconds to the first token of an answer, and the answer."""
    first, answer, begin = None, "", time.perf_counter()
    with httpx.stream("POST", f"{url}/v1/chat/completions", content=data, headers=JSON, timeout=PATIENCE_S) as reply:
        reply.raise_for_status()
        for line in reply.iter_lines():
            if line.startswith("data: {") and (choices := json.loads(line[6:])["choices"]):
                text = choices[0]["delta"].get("content") or ""
                if text and first is None:
                    first = time.perf_counter() - begin
                answer += text
    if first is None:
        raise RuntimeError(f"{url}: the answer has no text")
    return first, answer
