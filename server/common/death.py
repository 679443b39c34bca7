"""The end of a worker group, and its cause."""

import enum
from dataclasses import dataclass
from typing import Literal

# In this order: a signal ended a worker; a worker exited, reported a failure, or did not answer in time; the records of
# the step loop were inconsistent.
DeathReason = Literal["signal", "exit", "failure", "stall", "mismatch"]


@dataclass(frozen=True)
class Death:
    """The end of a worker group, with its reason; `message` is for people."""

    reason: DeathReason
    message: str

    def __str__(self) -> str:
        return self.message


class Cause(enum.Enum):
    """The cause of a death, as far as it decides whether another group is started."""

    UNKNOWN = enum.auto()  # no explanation
    REQUEST = enum.auto()  # a request that was identified or is being searched for
    PASSING = enum.auto()  # any cause, if the workers have answered since the previous death
