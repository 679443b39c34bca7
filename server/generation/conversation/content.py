"""The content of a turn: a text, or a list of texts and images, in the format of chat templates.

A content is a list only where it has an image: a template may know no lists. An image is a part without data here, and
the images themselves lie next to the turns, in the order of their parts. All contents are plain data.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

Part = dict[str, Any]
Content = str | list[Part]


def text_part(text: str) -> Part:
    """Return the part for a text."""
    return {"type": "text", "text": text}


def is_image(part: Part) -> bool:
    """Return whether the part stands for an image."""
    return bool(part["type"] == "image")


def parts_of(content: Content) -> list[Part]:
    """Return a content as a list of parts."""
    return [text_part(content)] if isinstance(content, str) else content


def joined(contents: Iterable[Content], between: str = "\n") -> Content:
    """Return the contents as one, with `between` between two texts.

    All are joined at once: one by one, thousands of texts would be copied thousands of times.
    """
    given = list(contents)
    texts = [each for each in given if isinstance(each, str)]
    if len(texts) == len(given):
        return between.join(texts)
    parts: list[Part] = []
    for has_images, group in groupby((part for each in given for part in parts_of(each)), key=is_image):
        run = list(group)
        parts += run if has_images else [text_part(between.join(part["text"] for part in run))]
    return parts if any(map(is_image, parts)) else parts[0]["text"]


def replaced(content: Content, by: Iterator[Content]) -> Content:
    """Return the content with the next item of `by` in place of each image; texts that become neighbours are lines."""
    if isinstance(content, str):
        return content
    return joined(next(by) if is_image(part) else part["text"] for part in content)


def texts_of(content: Content) -> list[str]:
    """Return the texts of a content, in order."""
    return [part["text"] for part in parts_of(content) if not is_image(part)]


def num_images(content: Content) -> int:
    """Return the number of images of a content."""
    return 0 if isinstance(content, str) else sum(map(is_image, content))


def characters(content: Content) -> int:
    """Return the length of the texts of a content."""
    return len(content) if isinstance(content, str) else sum(map(len, texts_of(content)))
