"""The interface of the front end's drafters."""

from collections.abc import Sequence as ListOf
from typing import Protocol

from numaserve.server.speculation.constraint import KnownConstraint
from numaserve.server.speculation.decode import Decode


class Drafter(Protocol):
    """Drafts the next tokens of one sequence."""

    @property
    def name(self) -> str:
        """The name under which draft tokens are counted."""

    @property
    def matched(self) -> int:
        """The number of tokens before the last draft tokens that matched their source: more matched tokens are a
        higher acceptance rate."""

    def draft(self, tokens: list[int], limit: int) -> list[int]:
        """Return at most `limit` draft tokens after `tokens`, which is the same growing list in each call."""


class Drafters(Protocol):
    """The drafters of a server's sequences."""

    def begin_step(self) -> None:
        """Begin a step: slow work is divided over steps."""

    def make(self, seq: Decode, constraint: KnownConstraint) -> ListOf[Drafter]:
        """Return the drafters of a sequence. The first of equally good drafters is used."""
