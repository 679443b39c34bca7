"""The regions of an answer, found in a whole text as transformers' parser finds them.

While no opened field is open, the search is for opening marks; otherwise for the closing mark of the open field. The
first match in the text wins, and the longest of those that begin together. The field without an opening mark takes the
rest.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from numaserve.server.answers.response_template.definition import Field, Template
from numaserve.server.answers.response_template.errors import Unreadable


@dataclass(frozen=True)
class Region:
    """A part of the text that belongs to a field: `start` to `end` with its marks, `begin` to `stop` without them."""

    field: Field
    start: int
    begin: int
    stop: int
    end: int
    captures: Mapping[str, str]


def turn_of(template: Template, prompt: str) -> str:
    """Return the end of the prompt that belongs to the answer's turn; the whole prompt if no turn is found."""
    end = 0
    for found in template.starts.finditer(prompt):
        end = found.end()
    return prompt[end:]


def regions(template: Template, text: str) -> Iterator[Region]:
    """Yield the regions of `text`, a turn with its answer, in order."""
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
            return  # an empty match of the closing mark of nothing; the search would never advance
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
    """Return the next mark and the field that it opens; the field is None if the mark closes the current one."""
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
    """Raise `Unreadable` if a required field is missing in `found`."""
    if any(not each.optional and each.name not in found for each in template.fields.values()):
        raise Unreadable
