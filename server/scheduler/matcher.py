"""The interface between the constraints of a sequence and the engine that generates it."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Protocol


class MaskState(enum.IntEnum):
    """The state of a row of the mask board, as written in the row's state word."""

    MASK = 1  # the row's bits are the allowed tokens
    FREE = 2  # every token is allowed
    DROP = 3  # the sequence must end


class ConstraintFailed(Exception):
    """A constraint that cannot continue, which ends its request; the message is for the client."""


class TokenMatcher(Protocol):
    """The constraint of one sequence. One thread at a time uses it, never the event loop's."""

    @property
    def is_confined(self) -> bool:
        """True if the work is done in another process, while the calling thread sleeps."""

    def confine(self) -> None:
        """Move the work to another process from now on, where that is possible."""

    def accept(self, token: int) -> None:
        """Advance by the sampled token. Raises `ConstraintFailed`."""

    def write_mask(self, address: int, nbytes: int) -> MaskState:
        """Write the bits of the next position to the `nbytes` bytes at `address`, or return `FREE`.

        Bit i of the little-endian uint32 words is set if token i is allowed. Raises `ConstraintFailed`.
        """

    def fork(self) -> TokenMatcher:
        """Return an independent copy in the same state. Raises `ConstraintFailed` where a copy is impossible."""

    def would_accept(self, tokens: Sequence[int]) -> int:
        """Return how many of `tokens` are allowed in sequence from here. Tokens that the constraint cannot judge count
        as allowed. Raises `ConstraintFailed` where the number is unknown."""

    def forced(self) -> Sequence[int]:
        """Return tokens of the only text that is allowed next. The answer may split this text into other tokens. Raises
        `ConstraintFailed` where the text is unknown."""
