"""A model that takes images: a decoder that decodes nothing, and a tokenizer whose template writes placeholders."""

import weakref
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast

from numaserve.server.app.application import ApiContext
from numaserve.server.generation.vision import Vision
from numaserve.server.images.decoder import ImageDecoder
from numaserve.server.images.expansion import Expansion
from numaserve.server.images.types import ImageLimits, ImageProblem, Picture
from numaserve.server.scheduler.cache.scope import CacheScope
from numaserve.server.scheduler.client import Client
from numaserve.server.scheduler.images import Tile
from numaserve.workers.interface.images import ImageInput, Tiles
from shared_apps import app_over
from whole_answers import TestClient

from tests.support.api_fakes import MODEL, FakeEngine, make_context
from tests.support.byte_tokenizer import ByteTokenizer

IMAGE, ROWS, MOST = 259, 3, 4  # the token, the feature rows of a tile, and the images of a request
PLACEHOLDER = "<i>"
CHAT, RESPONSES, MESSAGES, OLLAMA, GENERATE = (
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/messages",
    "/api/chat",
    "/generate",
)
LEFT_OUT = "X-Numaserve-Images-Left-Out"
NOT_SHOWN = "[An image, which this server does not show to the model."
EXPANSION = Expansion(edge="|", whole="whole", part="{}{}", row_end="\n", rows_end="\n")
SETTINGS = ImageInput(Tiles(8, 16, True, ROWS), 1, True, 1 / 255, (0.5,) * 3, (0.5,) * 3, IMAGE, "idefics3")
LIMITS = ImageLimits(MOST, 2**20, 2**20, 2**20)
DAMAGED = "The image is damaged. Send an intact file."


def encoded(text: str) -> str:
    """The base64 text of an image of this name: a `wide` one has two tiles and that of the whole, a `bad` one fails."""
    return b64encode(text.encode()).decode()


GOOD, WIDE, BAD = (encoded(name) for name in ("good", "wide", "bad"))


def data_url(image: str = GOOD) -> str:
    return f"data:image/png;base64,{image}"


@dataclass
class FakeDecoder:
    """Knows an image by its name."""

    limits: ImageLimits = LIMITS
    calls: list[tuple[tuple[str, ...], CacheScope]] = field(default_factory=list)
    made: list[weakref.ref[Tile]] = field(default_factory=list)

    async def decode(
        self, encoded: Sequence[str], scope: CacheScope, client: Client, *, whole: frozenset[int] = frozenset()
    ) -> list[Picture | ImageProblem]:
        self.calls.append((tuple(encoded), scope))
        found = [_found(text, split=index not in whole) for index, text in enumerate(encoded)]
        pictures = [each for each in found if isinstance(each, Picture)]
        self.made += [weakref.ref(tile) for picture in pictures for tile in picture.tiles]
        return found

    def close(self) -> None:
        pass


def _found(text: str, *, split: bool) -> Picture | ImageProblem:
    if text == BAD:
        return ImageProblem("invalid_image", DAMAGED)
    rows, cols, count = (1, 2, 3) if text == WIDE and split else (0, 0, 1)
    return Picture(rows, cols, tuple(Tile(number, text.encode(), 1, ROWS) for number in range(count)))


class SeeingTokenizer(ByteTokenizer):
    """A tokenizer with a placeholder, and a template that writes it; like that of SmolVLM it knows lists alone."""

    def __init__(self) -> None:
        super().__init__(markers={IMAGE: PLACEHOLDER}, render=_rendered)


def _rendered(messages: list[dict[str, Any]], *_: object, **_options: object) -> str:
    return "".join(f"{message['role']}:{_shown(message['content'])}\n" for message in messages)


def _shown(content: Any) -> str:
    parts = [] if isinstance(content, str) else content
    return "".join(part["text"] if part["type"] == "text" else PLACEHOLDER for part in parts)


def seeing_context(engine: FakeEngine, decoder: FakeDecoder | None = None, **more: Any) -> ApiContext:
    """A context over a model that takes images."""
    context = make_context(engine, context_length=2000, max_body_bytes=2**25, **more)
    vision = Vision(SETTINGS, PLACEHOLDER, cast(ImageDecoder, decoder or FakeDecoder()), EXPANSION)
    return replace(context, tokenizer=SeeingTokenizer(), vision=vision)


@contextmanager
def seeing_client(context: ApiContext) -> Iterator[TestClient]:
    with TestClient(app_over(context), base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
        yield client


def chat_part(image: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_url(image)}}


def response_part(image: str) -> dict[str, Any]:
    return {"type": "input_image", "image_url": data_url(image)}


def block(image: str) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": image}}


def one_message(content: Any, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], **more}


def bodies(image: str) -> dict[str, dict[str, Any]]:
    """A request of each surface with the text "see" and then an image, or where a field has images, before it."""
    text = {"type": "text", "text": "see"}
    ollama = {"model": MODEL, "stream": False}
    return {
        CHAT: one_message([text, chat_part(image)], max_tokens=2),
        RESPONSES: {
            "input": [{"role": "user", "content": [{"type": "input_text", "text": "see"}, response_part(image)]}]
        },
        MESSAGES: one_message([text, block(image)], max_tokens=2),
        OLLAMA: {**ollama, "messages": [{"role": "user", "content": "see", "images": [image]}]},
        "/api/generate": {**ollama, "prompt": "see", "images": [image]},
        GENERATE: {"text": f"user:see{PLACEHOLDER}\n", "image_data": image, "sampling_params": {"max_new_tokens": 2}},
    }


# The field that has the image.
PARAMS = {
    CHAT: "messages[0].content[1]",
    RESPONSES: "input[0].content[1]",
    MESSAGES: "messages[0].content[1]",
    OLLAMA: "messages[0].images",
    "/api/generate": "images",
    GENERATE: "image_data",
}
SURFACES = tuple(PARAMS)
