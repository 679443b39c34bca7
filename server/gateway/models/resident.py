"""A model of the file together with its place on the machine, and what all of them have in common."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from numaserve.server.config.serve import LogFormat, LogLevel
from numaserve.server.gateway.models.models_file import ModelSpec
from numaserve.server.gateway.models.process import MODEL_COMMAND
from numaserve.server.gateway.models.process_main import ModelLaunch
from numaserve.server.gateway.models.residency import Claim

_WATCHDOG_S = 90.0  # at least: a server may be busy with other things than steps


@dataclass(frozen=True)
class FleetOptions:
    """What all models have in common. `folder` is for their sockets, and nobody else's."""

    folder: Path
    drain_seconds: float
    load_wait_s: float
    log_level: LogLevel = "info"
    log_format: LogFormat = "auto"
    command: Sequence[str] = MODEL_COMMAND


@dataclass(frozen=True)
class Resident:
    """A model and its place: processors, and what it claims of them."""

    spec: ModelSpec
    cpus: Sequence[int]
    claim: Claim

    @property
    def watchdog_s(self) -> float:
        """Seconds without a sign that steps come back, after which its server is killed.

        A step may take less than that: the server's own restart of its workers comes first.
        """
        return max(_WATCHDOG_S, 1.5 * self.spec.config.step_deadline_seconds)

    def launch(self, **of_all: object) -> ModelLaunch:
        """What the process of its server is told; `of_all` are options that all models have in common."""
        spec = self.spec
        names = [spec.name, *(spec.config.served_model_name or ())]
        return ModelLaunch(spec.name, {**spec.options, "served_model_name": names, **of_all}, list(self.cpus))
