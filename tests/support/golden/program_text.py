"""A native Program's description as lines of text that do not depend on where the arena has its matrices.

A matrix is called by the number of the node's output that made it, and columns of a matrix by where they begin in it.
"""

import json
from dataclasses import dataclass
from typing import Any

_ITEM_BYTES = {"fp32": 4, "bf16": 2, "int8": 1, "int32": 4}


@dataclass(frozen=True)
class _Made:
    number: int
    offset: int
    row_bytes: int
    ld: int
    collective: int

    def holds(self, offset: int, ld: int, collective: int) -> bool:
        """Whether that place is this matrix or begins in its first row. A place of a collective has no offset of its
        own."""
        if collective != self.collective or ld != self.ld:
            return False
        return collective >= 0 or offset == self.offset or self.offset < offset < self.offset + self.row_bytes


class _Places:
    """Which matrix a place is: the last that was written there. An older one is gone from where they overlap."""

    def __init__(self) -> None:
        self._made: list[_Made] = []

    def operand(self, operand: dict[str, Any]) -> list[object]:
        offset, ld, collective = operand["place"]
        told = [operand["role"], operand["access"], operand["type"], ld, collective]
        read = None
        if operand["access"] != "write":
            found = next((each for each in reversed(self._made) if each.holds(offset, ld, collective)), None)
            read = f"#{found.number}+{0 if collective >= 0 else offset - found.offset}" if found else "nothing"
        if operand["access"] != "read":
            row_bytes = ld * _ITEM_BYTES[operand["type"]]
            self._made.append(_Made(len(self._made), offset, row_bytes, ld, collective))
            return [*told, read, f"#{len(self._made) - 1}"]
        return [*told, read]


def program_lines(description: dict[str, Any]) -> list[str]:
    """A line of JSON for each node, and one for what the Program has besides."""
    places = _Places()
    lines = []
    for node in description["nodes"]:
        # All that is read is read before anything is written.
        order = sorted(node["operands"], key=lambda operand: operand["access"] != "read")
        lines.append(json.dumps({**node, "operands": [places.operand(each) for each in order]}))
    rest = {key: value for key, value in description.items() if key not in {"nodes", "arena_bytes"}}
    return [*lines, json.dumps(rest)]
