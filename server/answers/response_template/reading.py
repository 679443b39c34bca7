"""The regions of an answer, as transformers' parser finds them in a whole text.

What opens a field is looked for where no opened field is open, and what closes the open one otherwise. Of several the
first in the text counts, of those that begin together the longest. What is left goes to the field that nothing opens.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from numaserve.server.answers.response_template.definition import Field, Template
from numaserve.server.answers.response_template.errors import Unreadable


@dataclass(frozen=True)
class Region:
    """A part of the text that a field has, from `start` to `end` with its marks; its own text is `begin` to `stop`."""

    field: Field
    start: int
    begin: int
    stop: int
    end: int
    captures: Mapping[str, str]


def turn_of(template: Template, prompt: str) -> str:
    """The end of the prompt that belongs to the answer's turn; all of it where no turn is found."""
    end = 0
    for found in template.starts.finditer(prompt):
        end = found.end()
    return prompt[end:]


def regions(template: Template, text: str) -> Iterator[Region]:
    """The regions of `text`, a turn with its answer, in order."""
    leftover = template.leftover
    opening = [each for each in template.fields.values() if each.opens is not None]
    current, start, begin, captures = leftover, 0, 0, dict[str, str]()
    while True:
        is_left = current is leftover
        found, opened = _next(text, begin, opening if is_left else [], current)
        stop = len(text) if found is None else found.start()
        if current is not None and (not is_left or stop > begin):
            end = stop if found is None or opened is not None else found.end()
            groups = captures if found is None or opened is not None else {**captures, **_named(found)}
            yield Region(current, start, begin, stop, end, groups)
        elif found is not None and opened is None and found.start() == found.end():
            return  # an end of nothing, found at no text: it would be found for ever
        if found is None:
            return
        begin = found.end()
        if opened is None:
            current, start, captures = leftover, begin, {}
        else:
            current, start, captures = opened, found.start(), _named(found)


def _next(
    text: str, position: int, opening: Sequence[Field], current: Field | None
) -> tuple[re.Match[str] | None, Field | None]:
    """The next mark, and the field that it opens; None where it closes the current one."""
    best: tuple[tuple[int, int, bool, str], re.Match[str], Field | None] | None = None
    marks = [(each.opens, each) for each in opening]
    closing = [] if current is None else [(current.closes, current)]
    for closes, candidates in ((False, marks), (True, closing)):
        for pattern, owner in candidates:
            found = None if pattern is None else pattern.search(text, position)
            if found is None:
                continue
            key = (found.start(), found.start() - found.end(), closes, owner.name)
            if best is None or key < best[0]:
                best = key, found, None if closes else owner
    return (None, None) if best is None else best[1:]


def _named(found: re.Match[str]) -> dict[str, str]:
    return {name: text for name, text in found.groupdict().items() if text is not None}


def check_complete(template: Template, found: Collection[str]) -> None:
    """Raise `Unreadable` where a required field is missing among those that were `found`."""
    if any(not each.optional and each.name not in found for each in template.fields.values()):
        raise Unreadable
