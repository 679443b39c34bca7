"""The images of a conversation, as clients send them: in base64, alone or in a `data:` URL.

What a client sends in place of an image is no error here: agents resend their history, and a bad image in it would make
every later turn fail. The reason is kept, and becomes an error, or a text for the model, once the turn is known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec
from numaserve.server.generation.conversation.content import Part, is_image
from numaserve.server.http.body.opaque import Opaque
from numaserve.server.http.explain import Problem
from numaserve.server.http.fields.types import Strict

_SEND = "Send the image itself as a data URL, 'data:image/png;base64,...'."
_NO_FETCHING = f"The server does not fetch images. {_SEND}"
_NO_FILES = f"The server does not store files. {_SEND}"
_NO_IMAGE = f"There is no image in this part. {_SEND}"
_NO_BASE64 = f"The data URL has no image in base64. {_SEND}"
_NOT_ASCII = "The image is not valid base64: it has other characters than ASCII. Encode the image file in base64."
_NOT_STORED = "The server does not store the images of a response. Send the image again."
_EARLIER = "previous_response_id"
# The media type may have parameters. A longer head is not one of an image.
_HEAD = re.compile(r"data:image/[\w.+-]+(?:;[\w.+-]+=[\w.+-]+)*;base64,", re.ASCII | re.IGNORECASE)
_LONGEST_HEAD = 256


class Image(msgspec.Struct, frozen=True):
    """An image of a conversation, or the problem with what a client sent in its place."""

    param: str  # the field that has it
    encoded: Opaque | None = None  # in base64; None: there is a problem
    split: bool = True  # cut into tiles, where the model's image processor does so
    problem: Problem | None = None
    of_earlier: bool = False  # of a stored response, which has no images

    def stored(self) -> Image:
        """Return what is left of the image in a stored response."""
        return Image(_EARLIER, problem=_problem(_EARLIER, _NOT_STORED, "image_not_stored"), of_earlier=True)


class Images(msgspec.Struct, frozen=True):
    """The images of a field of their own, outside of a conversation."""

    images: list[Image]


class ImagePart(Strict):
    """A part of a content that is an image, in the format of an API surface."""

    def image(self, param: str) -> Image:
        """Return the image, which the field `param` has."""
        raise NotImplementedError


def image_part(image: Image) -> Part:
    """Return the part for an image. `taken_out` removes the image from it."""
    return {"type": "image", "image": image}


def taken_out(turns: Iterable[dict[str, Any]]) -> list[Image]:
    """Take the images out of the parts that stand for them, and return the images in order."""
    contents = (turn["content"] for turn in turns if not isinstance(turn["content"], str))
    return [part.pop("image") for content in contents for part in content if is_image(part)]


def image_at(param: str, url: object, detail: object = None) -> Image:
    """Return the image of a `data:` URL; with the `detail` "low" it is not split."""
    if not isinstance(url, str) or not url:
        return no_image(param)
    head = _HEAD.match(url[:_LONGEST_HEAD])
    if head is not None:
        return encoded_image(param, url[head.end() :], split=detail != "low")
    if url[:5].lower() == "data:":
        return Image(param, problem=_problem(param, _NO_BASE64))
    return Image(param, problem=_problem(param, _NO_FETCHING, "image_url_unsupported"))


def encoded_image(param: str, data: object, *, split: bool = True) -> Image:
    """Return the image of a text in base64."""
    if not isinstance(data, str) or not data:
        return no_image(param)
    if not data.isascii():
        return Image(param, problem=_problem(param, _NOT_ASCII))
    return Image(param, Opaque(data), split)


def image_of_file(param: str) -> Image:
    """Return the image that a client names by the id of a file."""
    return Image(param, problem=_problem(param, _NO_FILES, "image_url_unsupported"))


def no_image(param: str) -> Image:
    """Return the image of a part that has none."""
    return Image(param, problem=_problem(param, _NO_IMAGE))


def _problem(param: str, message: str, code: str = "invalid_image") -> Problem:
    return Problem(message, param, code)
