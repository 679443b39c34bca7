"""Every text that can reach a user, and the rules that it is held to."""

from collections.abc import Iterator
from typing import NamedTuple


class Text(NamedTuple):
    """A text, and the place that it comes from: a file with a line, or what shows it."""

    place: str
    text: str


def all_texts() -> Iterator[Text]:
    """Yield every text of the product, each once."""
    from tests.documentation.texts.shown import shown_texts  # the rules alone import no server
    from tests.documentation.texts.sources import source_texts

    seen: set[str] = set()
    for each in (*source_texts(), *shown_texts()):
        if each.text not in seen:
            seen.add(each.text)
            yield each
