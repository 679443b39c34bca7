"""The configuration of the engine and its callbacks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from numaserve.server.config.option_types import DrafterName
from numaserve.workers.interface.settings import ActivationDtype


@dataclass(frozen=True)
class EngineConfig:
    """Settings of the engine itself; the limits of a step belong to the scheduler."""

    model: str  # its name in metrics and server_info
    version: str
    max_queued_requests: int = 512
    max_queued_s: float = 600.0  # of predicted work in the queue
    step_deadline_s: float = 60.0
    overlap: bool = True  # plan one step ahead
    drafters: tuple[DrafterName, ...] = ()  # the drafters of the scheduler
    beat_s: float | None = 5.0  # idle time after which workers must answer an empty plan; None: never
    mask_patience_s: float = 5.0  # longest time that a sequence waits for the mask of its next token
    resume_timeout_s: float = 300.0  # longest time that requests wait for new workers
    # The formats of grouped weights, by the type of the activations that they are multiplied by.
    multiplied_by: Mapping[ActivationDtype, Sequence[str]] = field(default_factory=dict)
    # The host of each pipeline stage: the address of an agent, or "" for this host. Empty: all are on this host.
    hosts: Sequence[str] = ()


@dataclass(frozen=True)
class EngineCallbacks:
    """Callbacks to the service, all called in the event loop."""

    load_progress: Callable[[int, int], None] = lambda _done, _total: None  # bytes of packed weights, all ranks
    given_up: Callable[[str], None] = lambda _reason: None  # the workers failed too often; the process should exit
