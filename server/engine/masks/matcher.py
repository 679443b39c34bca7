"""The seam between those who know what a sequence may say and the engine, which generates it."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Protocol


class MaskState(enum.IntEnum):
    """The state of a row of the mask board, as its word says it."""

    MASK = 1  # the row's bits tell which tokens are allowed
    FREE = 2  # every token is
    DROP = 3  # the sequence is not to go on


class ConstraintFailed(Exception):
    """A constraint that cannot go on, which ends its request; the message is for the client."""


class TokenMatcher(Protocol):
    """The constraint of one sequence. It is used by one thread at a time, which is never the event loop's."""

    @property
    def is_confined(self) -> bool:
        """Whether its work is done in another process, while the thread that has asked for it sleeps."""

    def confine(self) -> None:
        """Have its work done in another process from now on, where it can be."""

    def accept(self, token: int) -> None:
        """Take in the sampled token. Raises `ConstraintFailed`."""

    def write_mask(self, address: int, nbytes: int) -> MaskState:
        """Write the bits of the next position to the `nbytes` bytes at `address`, or say `FREE`.

        Bit i of the little-endian uint32 words tells whether token i is allowed. Raises `ConstraintFailed`.
        """

    def fork(self) -> TokenMatcher:
        """One at the same place, which goes its own way: what becomes of it changes nothing here. Raises
        `ConstraintFailed` where there can be none."""

    def would_accept(self, tokens: Sequence[int]) -> int:
        """How many of these tokens may come next, one after the other; those of which nothing is known count. Raises
        `ConstraintFailed` where that cannot be told."""

    def forced(self) -> Sequence[int]:
        """Tokens of the only text that is allowed next. The answer may cut it into tokens in another way. Raises
        `ConstraintFailed` where that cannot be told."""
