"""Images in the formats of API surfaces.

The fields take any value, and describe what is served: a wrong value is a problem of the image, which is an error only
where the image is in the last turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from numaserve.server.generation.conversation.content import Content, joined
from numaserve.server.generation.conversation.images import (
    Image,
    ImagePart,
    Images,
    encoded_image,
    image_at,
    image_of_file,
    image_part,
    no_image,
)
from numaserve.server.http.fields.media import MEDIA
from numaserve.server.http.fields.typed import kind_of
from numaserve.server.http.fields.types import Unused, made_of
from pydantic import WithJsonSchema

# Clients confuse the types of the surfaces. A text model refuses each as an image.
_ImageType = Literal["image_url", "input_image", "image", "image_embeds"]
IMAGE_TYPES = tuple(kind for kind, media in MEDIA.items() if media == "images")
_SCHEME = 32  # characters at the beginning of a URL that hold its scheme
_URL = {"type": "string", "description": "Image in base64: `data:image/png;base64,...`."}
_DETAIL = {"enum": ["auto", "low", "high", "original", None]}
_SOURCE = {
    "type": "object",
    "properties": {"type": {"const": "base64"}, "media_type": {"type": "string"}, "data": {"type": "string"}},
    "required": ["type", "data"],
}

ImageUrl = Annotated[
    Any, WithJsonSchema({"anyOf": [_URL, {"type": "object", "properties": {"url": _URL, "detail": _DETAIL}}]})
]
Detail = Annotated[Any, WithJsonSchema(_DETAIL)]
Source = Annotated[Any, WithJsonSchema(_SOURCE)]
_TEXT = {"type": "string", "description": "Image in base64, or a URL `data:image/png;base64,...`."}
_Given = Annotated[Any, WithJsonSchema({"anyOf": [_TEXT, {"type": "array", "items": _TEXT}]})]
ImageTexts = Annotated[Any, WithJsonSchema({"anyOf": [{"type": "array", "items": _TEXT}, {"type": "null"}]})]


class OpenAiImage(ImagePart):
    """An image in OpenAI's format: a `data:` URL, alone or in an object."""

    type: Annotated[_ImageType, WithJsonSchema({"enum": ["image_url", "input_image"]})]
    image_url: ImageUrl = None
    """Image as a URL `data:image/png;base64,...`, or an object with that `url` and a `detail`."""
    detail: Detail = None
    """`low` gives the model a single, small image. Any other value has no effect."""
    file_id: Unused = None
    source: Unused = None
    cache_control: Unused = None

    def image(self, param: str) -> Image:
        """Return the image, which the field `param` has."""
        given = self.image_url
        if given is None and "file_id" in self.model_fields_set:
            return image_of_file(param)
        url, detail = (given.get("url"), given.get("detail")) if isinstance(given, dict) else (given, None)
        return image_at(param, url, self.detail if detail is None else detail)


class AnthropicImage(ImagePart):
    """An image in Anthropic's format."""

    type: Annotated[_ImageType, WithJsonSchema({"const": "image"})]
    source: Source = None
    """Image as `{"type": "base64", "media_type": "image/png", "data": ...}`."""
    image_url: Unused = None
    cache_control: Unused = None

    def image(self, param: str) -> Image:
        """Return the image, which the field `param` has."""
        given = self.source if isinstance(self.source, dict) else {}
        match given.get("type"):
            case "base64":
                return encoded_image(param, given.get("data"))
            case "url":
                return image_at(param, given.get("url"))
            case "file":
                return image_of_file(param)
        return no_image(param)


def images_in(given: object, param: str) -> list[Image]:
    """Return the images of a field that has one or several, each in base64 or as a `data:` URL."""
    return [_image_text(param, each) for each in (given if isinstance(given, list) else [given]) if each is not None]


def images_of(param: str) -> made_of:
    """Return the validator that makes `Images` of the field `param`."""
    return made_of(_Given, lambda given: Images(images_in(given, param)))


def with_images(images: Sequence[Image], text: str) -> Content:
    """Return the content of some images and of a text after them."""
    parts = [[image_part(image)] for image in images]
    return joined([*parts, text] if text or not parts else parts)


def _image_text(param: str, value: object) -> Image:
    is_url = isinstance(value, str) and (value[:5].lower() == "data:" or "://" in value[:_SCHEME])
    return image_at(param, value) if is_url else encoded_image(param, value)


def text_or_image(value: object) -> str:
    """Return the tag of a part that is an image, or of any other part."""
    return "[image]" if _kind(value) in IMAGE_TYPES else "[text]"


def image_or_type(value: object) -> str:
    """Return the tag of a block that is an image, or of any other block by its type."""
    kind = _kind(value)
    return "[image]" if kind in IMAGE_TYPES else f"[{kind}]"


def _kind(value: object) -> object:
    # The most frequent case first: the other takes several times as long.
    return value.get("type") if type(value) is dict else kind_of(value)
