"""A placed model of the fleet, and the options that all models share."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from numaserve.server.config.serve import LogFormat, LogLevel
from numaserve.server.gateway.models.models_file import ModelSpec
from numaserve.server.gateway.models.process import MODEL_COMMAND
from numaserve.server.gateway.models.process_main import ModelLaunch
from numaserve.server.gateway.models.residency import Claim
from numaserve.server.service.checks.instruction_set import InstructionSet

_WATCHDOG_S = 90.0  # minimum: a model process may be busy with work other than steps


@dataclass(frozen=True)
class FleetOptions:
    """The options that all models share. `folder` holds their sockets and is private to this process."""

    folder: Path
    drain_seconds: float
    load_wait_s: float
    log_level: LogLevel = "info"
    log_format: LogFormat = "auto"
    command: Sequence[str] = MODEL_COMMAND
    kernels: InstructionSet | None = None  # None if no model uses kernels


@dataclass(frozen=True)
class Resident:
    """A placed model: its processors, and its claim on cores and memory."""

    spec: ModelSpec
    cpus: Sequence[int]
    claim: Claim

    @property
    def watchdog_s(self) -> float:
        """Seconds without a watchdog message after which the model process is killed.

        The value exceeds the step deadline, so that the model process restarts its own workers first.
        """
        return max(_WATCHDOG_S, 1.5 * self.spec.config.step_deadline_seconds)

    def launch(self, kernels: InstructionSet | None, **of_all: object) -> ModelLaunch:
        """Return the launch message for the model process; `of_all` are the options that all models share."""
        spec = self.spec
        names = [spec.name, *(spec.config.served_model_name or ())]
        options = {**spec.options, "served_model_name": names, **of_all}
        return ModelLaunch(spec.name, options, list(self.cpus), kernels=kernels)
