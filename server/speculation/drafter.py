"""The interface of the front end's drafters."""

from collections.abc import Callable
from collections.abc import Sequence as ListOf
from dataclasses import dataclass
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


class DrafterSource(Protocol):
    """The part of a drafter that all sequences of a server share."""

    def begin_step(self) -> None:
        """Begin a step: slow work is divided over steps."""

    def make(self, seq: Decode, constraint: KnownConstraint) -> Drafter | None:
        """Return the drafter of a sequence; None for a sequence that it cannot draft for."""


class EachAlone:
    """A source that shares nothing."""

    def __init__(self, make: Callable[[Decode, KnownConstraint], Drafter | None]) -> None:
        self._make = make

    def begin_step(self) -> None:
        """Begin a step."""

    def make(self, seq: Decode, constraint: KnownConstraint) -> Drafter | None:
        """Return the drafter of a sequence; None for a sequence that it cannot draft for."""
        return self._make(seq, constraint)


@dataclass(frozen=True)
class FrontEndDrafter:
    """A drafter of the front end: the `DRAFTER` of a module in `drafters`, whose name is the drafter's."""

    place: int  # among all drafters: the first of equally good drafters is used
    source: Callable[[], DrafterSource]  # called once for a server
