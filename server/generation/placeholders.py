"""The placeholders of images in a prompt: their check, their expansion, and the positions of tiles."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from numaserve.server.generation.context import ApiContext
from numaserve.server.generation.conversation.turns import Turn
from numaserve.server.generation.vision import Vision
from numaserve.server.http.errors import ApiError, bad_request
from numaserve.server.images.expansion import expand
from numaserve.server.images.types import Picture
from numaserve.server.scheduler.images import PlacedTile

_CODE = "image_placeholder"


def defused(value: Any, reserved: Sequence[str]) -> Any:
    """Return a part of a conversation whose texts have a space within each text that is `reserved` for images.

    Earlier turns, results of tools and the model's own answers may quote such a text, and a client cannot take it out
    of them: an error would end the conversation.
    """
    if isinstance(value, str):
        for text in reserved:
            value = value.replace(text, f"{text[0]} {text[1:]}")
        return value
    if isinstance(value, dict):
        return {name: defused(each, reserved) for name, each in value.items()}
    return [defused(each, reserved) for each in value] if isinstance(value, list) else value


def defused_but(last: range, turns: Sequence[Turn], reserved: Sequence[str]) -> list[Turn]:
    """Return the turns with a space within each reserved text in all but the user's `last` turn."""
    return [turn if index in last else defused(turn, reserved) for index, turn in enumerate(turns)]


def expanded(context: ApiContext, text: str, pictures: Sequence[Picture], param: str, texts: Iterable[str] = ()) -> str:
    """Return the text of a prompt with the expansion of each picture in place of its mark.

    Raises `ApiError` unless there is one mark for each picture, and none is in the user's `texts`.
    """
    vision = context.vision
    if vision is None:
        return text
    found = text.count(vision.marker)
    given = list(texts)
    for reserved in vision.reserved:
        if any(reserved in each for each in given):
            raise _of_client(reserved, param)
    if found != len(pictures):
        raise bad_request(
            f"The prompt has {found} placeholders '{vision.marker}' for {len(pictures)} images. Send one for each "
            "image; for a conversation the chat template writes them, and may not show images of each role.",
            param,
            _CODE,
        )
    return expand(text, pictures, vision.placeholder, vision.expansion)


def placed(vision: Vision, tokens: list[int], pictures: Sequence[Picture], param: str) -> tuple[PlacedTile, ...]:
    """Return the tiles of the pictures with their positions in a prompt. Raises `ApiError` for a token that stands for
    an image without one. Takes some milliseconds for a long prompt."""
    token, tiles = vision.settings.token, [tile for picture in pictures for tile in picture.tiles]
    if tokens.count(token) != sum(tile.features for tile in tiles):
        raise _of_client(vision.placeholder, param)
    found, end = list[PlacedTile](), 0
    for tile in tiles:
        found.append(PlacedTile(tokens.index(token, end), tile, vision.expansion.gap))
        end = found[-1].end
    return tuple(found)


def _of_client(placeholder: str, param: str) -> ApiError:
    return bad_request(
        f"The text '{placeholder}' stands for an image in this model's prompts, and there is no image for it. Remove "
        "it from the texts of the request.",
        param,
        _CODE,
    )
