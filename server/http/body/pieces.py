"""Data in pieces, so that no decoding holds the interpreter's lock for long.

A JSON decoder holds the lock until it is done. For prompts of millions of token ids, which long contexts allow, it
would stop every stream for a tenth of a second.
"""

from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import msgspec

MOST_WEIGHT = 1 << 14  # of a piece, about a millisecond of work: each value weighs 1, a long text more
CHARACTERS = 64  # of a text that together weigh 1
_HEAVY = frozenset({dict, list, str})
_Container: TypeAlias = dict[str, Any] | list[Any]


class Piece(msgspec.Struct, array_like=True):
    """Some items of the object or list at `path`, a sequence of keys and indices from the whole."""

    path: list[str | int]
    items: dict[str, Any] | list[Any]


class Pieces:
    """The pieces of `whole`, in an order that `put_together` accepts. A text is never split."""

    def __init__(self, whole: dict[str, Any]) -> None:
        """Measure `whole`, which consists of JSON objects, lists and scalars."""
        self._whole = whole
        found: list[_Container] = [whole]
        heavy: list[list[Any]] = []  # for each container, its items that may weigh more than 1
        for each in found:  # the loop appends to it
            items = each.values() if isinstance(each, dict) else each
            heavy.append([item for item in items if type(item) in _HEAVY])
            found += [item for item in heavy[-1] if type(item) is not str]
        self.containers = len(found)  # objects and lists, the whole included
        self._weights: dict[int, int] = {}  # by the identity of each container, with its content
        for each, items in zip(reversed(found), reversed(heavy), strict=True):
            self._weights[id(each)] = 1 + len(each) - len(items) + sum(map(self._weight, items))

    def __iter__(self) -> Iterator[Piece]:
        return self._cut([], self._whole)

    def _cut(self, path: list[str | int], whole: _Container) -> Iterator[Piece]:
        if isinstance(whole, list) and self._weight(whole) == 1 + len(whole):  # as lists of token ids are
            yield from (Piece(path, whole[at : at + MOST_WEIGHT]) for at in range(0, len(whole), MOST_WEIGHT))
            return
        part, room = type(whole)(), MOST_WEIGHT
        pairs: Iterable[tuple[Any, Any]] = whole.items() if isinstance(whole, dict) else enumerate(whole)
        for key, item in pairs:
            weight = self._weight(item)
            if weight > room and part:
                yield Piece(path, part)
                part, room = type(whole)(), MOST_WEIGHT
            is_cut = weight > MOST_WEIGHT and type(item) is not str
            shown = type(item)() if is_cut else item
            if isinstance(part, dict):
                part[key] = shown
            else:
                part.append(shown)
            room -= weight
            if is_cut:
                yield Piece(path, part)
                part, room = type(whole)(), MOST_WEIGHT
                yield from self._cut([*path, key], item)
        if part:
            yield Piece(path, part)

    def _weight(self, item: object) -> int:
        return 1 + len(item) // CHARACTERS if isinstance(item, str) else self._weights.get(id(item), 1)


def put_together(pieces: Iterable[Piece]) -> dict[str, Any]:
    """Return the whole that was split into `pieces`."""
    whole: dict[str, Any] = {}
    for piece in pieces:
        target: Any = whole
        for step in piece.path:
            target = target[step]
        if isinstance(target, dict):
            target.update(piece.items)
        else:
            target.extend(piece.items)
    return whole
