"""The text of an image in a prompt: placeholders, and the special tokens around them.

A chat template writes one placeholder for an image. Its expansion has a placeholder for each feature row of each tile.
It is text, as in transformers: ids could differ where the tokenizer joins the text around an image.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from numaserve.server.images.types import Picture
from numaserve.workers.interface.images import ImageInput, ImageText


@dataclass(frozen=True)
class Expansion:
    """The texts of a family's special tokens around placeholders.

    Chat templates write the text `marker` for an image; empty: they write its placeholder.
    """

    marker: str = ""
    begin: str = ""  # before the first tile
    edge: str = ""  # before each tile, and at the end of the image
    whole: str = ""  # before the placeholders of the tile that shows the whole image
    part: str = ""  # before the placeholders of another tile, with places for the tile's row and column, from 1 on
    newline: str = ""  # between two rows of a tile's grid of features
    between: str = ""  # between two tiles of a row
    row_end: str = ""  # after a row of tiles
    rows_end: str = ""  # after the last of them
    end: str = ""  # after the last tile

    @property
    def tokens(self) -> tuple[str, ...]:
        """The texts that must be special tokens."""
        texts = (self.marker, self.begin, self.edge, self.newline, self.between, self.row_end.strip(), self.end)
        return tuple(each for each in texts if each)

    @property
    def gap(self) -> int:
        """The number of tokens between two rows of a tile's grid of features."""
        return 1 if self.newline else 0

    def of(self, picture: Picture, placeholder: str) -> str:
        """Return the text of an image, with a placeholder for each row of features."""
        texts = iter([self.newline.join([placeholder * tile.cols] * tile.rows) for tile in picture.tiles])
        rows = [
            self.between.join(
                f"{self.edge}{self.part.format(row, col)}{next(texts)}" for col in range(1, picture.cols + 1)
            )
            for row in range(1, picture.rows + 1)
        ]
        first = "".join(f"{row}{self.row_end}" for row in rows) + (self.rows_end if rows else "")
        return f"{self.begin}{first}{self.edge}{self.whole}{next(texts)}{self.edge}{self.end}"


# The sources are the processors of transformers 5.24. That of Idefics3 is SmolVLM's and granite-docling's too.
EXPANSIONS: Mapping[ImageText, Expansion] = {
    "plain": Expansion(),
    "idefics3": Expansion(
        edge="<fake_token_around_image>",
        whole="<global-img>",
        part="<row_{}_col_{}>",
        row_end="\n",
        rows_end="\n",
    ),
    "pixtral": Expansion(newline="[IMG_BREAK]", end="[IMG_END]"),
    "llama4": Expansion(
        marker="<|image|>",
        begin="<|image_start|>",
        whole="<|image|>",
        between="<|tile_x_separator|>",
        row_end="<|tile_y_separator|>",
        end="<|image_end|>",
    ),
}


def expansion_of(settings: ImageInput, text_of: Callable[[int], str]) -> Expansion:
    """Return the texts of the models that take such images. `text_of` returns the text of a special token."""
    frame = settings.frame
    if frame is None:
        return EXPANSIONS[settings.text]
    begin, end = text_of(frame.begin), text_of(frame.end)
    marker = begin if frame.marks else ""
    return Expansion(marker, f"{frame.around}{begin}", end=f"{end}{frame.around}")


def expand(text: str, pictures: Sequence[Picture], placeholder: str, family: Expansion) -> str:
    """Return the text with the expansion of each picture in place of what stands for it; there is one for each."""
    before, *after = text.split(family.marker or placeholder)
    images = (family.of(picture, placeholder) for picture in pictures)
    return before + "".join(image + rest for image, rest in zip(images, after, strict=True))
