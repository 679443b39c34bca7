"""The end of a worker group, and what brought it about."""

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
