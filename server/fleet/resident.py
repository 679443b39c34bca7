"""A model of the file together with its place on the machine, and what all of them have in common."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from numaserve.server.config import LogLevel
from numaserve.server.fleet.member import Membership
from numaserve.server.fleet.models_file import ModelSpec
from numaserve.server.fleet.process import MEMBER_COMMAND
from numaserve.server.fleet.residency import Claim


@dataclass(frozen=True)
class FleetOptions:
    """What all models have in common. `folder` is for their sockets, and nobody else's."""

    folder: Path
    drain_seconds: float
    load_wait_s: float
    log_level: LogLevel = "info"
    command: Sequence[str] = MEMBER_COMMAND


@dataclass(frozen=True)
class Resident:
    """A model and its place: processors, and what it claims of them."""

    spec: ModelSpec
    cpus: Sequence[int]
    claim: Claim

    def membership(self, **of_all: object) -> Membership:
        """What the process of its server is told; `of_all` are options that all models have in common."""
        spec = self.spec
        names = [spec.name, *(spec.config.served_model_name or ())]
        return Membership(spec.name, {**spec.options, "served_model_name": names, **of_all}, list(self.cpus))
