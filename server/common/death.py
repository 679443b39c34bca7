"""The end of a worker group, and what brought it about."""

import enum
from dataclasses import dataclass
from typing import Literal

# A signal ended a worker, it exited, it told of a failure, it did not answer in time, or the books do not add up.
DeathReason = Literal["signal", "exit", "failure", "stall", "mismatch"]


@dataclass(frozen=True)
class Death:
    """Says why a group cannot serve any more; `message` is for people."""

    reason: DeathReason
    message: str

    def __str__(self) -> str:
        return self.message


class Cause(enum.Enum):
    """Says what a death comes from, as far as it matters for whether another group should be started."""

    UNKNOWN = enum.auto()  # nothing explains it
    REQUEST = enum.auto()  # one that is being looked for, or has been found
    PASSING = enum.auto()  # whatever it was, the workers have answered since the one before
