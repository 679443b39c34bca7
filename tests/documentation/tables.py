"""Tables in Markdown."""

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table with a line for each row."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join("|" + "|".join(f" {_cell(text)} " if text else " " for text in line) + "|\n" for line in lines)


def code(*texts: str) -> str:
    """Each in backticks, with commas between."""
    return ", ".join(f"`{text}`" for text in texts)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
