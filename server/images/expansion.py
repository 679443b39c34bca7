"""The text of an image in a prompt: placeholders, and the special tokens around them.

A chat template writes one placeholder for an image. Its expansion has a placeholder for each feature row of each tile.
It is text, as in transformers: ids could differ where the tokenizer joins the text around an image.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from numaserve.server.images.types import Picture
from numaserve.workers.interface.images import Grid, ImageInput, Tiles


@dataclass(frozen=True)
class Expansion:
    """The texts of a family's special tokens around placeholders."""

    edge: str = ""  # before each tile, and at the end of the image
    whole: str = ""  # before the placeholders of the tile that shows the whole image
    part: str = ""  # before the placeholders of another tile, with places for the tile's row and column, from 1 on

    def of(self, picture: Picture, placeholder: str) -> str:
        """Return the text of an image, with a placeholder for each row of features."""
        texts = iter([placeholder * tile.features for tile in picture.tiles])
        rows = [
            "".join(f"{self.edge}{self.part.format(row, col)}{next(texts)}" for col in range(1, picture.cols + 1))
            for row in range(1, picture.rows + 1)
        ]
        last = f"{self.edge}{self.whole}{next(texts)}{self.edge}"
        return "".join([*(f"{row}\n" for row in rows), f"\n{last}" if rows else last])


# The texts in `get_image_prompt_string`, for Idefics3, SmolVLM and granite-docling.
IDEFICS3 = Expansion("<fake_token_around_image>", "<global-img>", "<row_{}_col_{}>")
# By the sizes of images. Around those of any size, the chat template itself writes tokens.
_EXPANSIONS: Mapping[type, Expansion] = {Tiles: IDEFICS3, Grid: Expansion()}


def expansion_of(settings: ImageInput) -> Expansion:
    """Return the texts of the models that take such images."""
    return _EXPANSIONS[type(settings.sizes)]


def expand(text: str, pictures: Sequence[Picture], placeholder: str, family: Expansion) -> str:
    """Return the text with the expansion of each picture in place of its placeholder; there is one for each."""
    before, *after = text.split(placeholder)
    images = (family.of(picture, placeholder) for picture in pictures)
    return before + "".join(image + rest for image, rest in zip(images, after, strict=True))
