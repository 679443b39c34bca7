"""The state of a server after the first checks: address, keys, processor and model."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from numaserve.server.config.serve import ServeConfig
from numaserve.server.connection.listen import Listener
from numaserve.server.service.bind import GatewayLink
from numaserve.server.service.checks.instruction_set import InstructionSet
from numaserve.server.service.checks.tokenizer_check import TokenizerCheck
from numaserve.server.service.process.key_sources import KeySources


@dataclass(frozen=True)
class Started:
    """The results of the first checks."""

    config: ServeConfig
    key_sources: KeySources
    listeners: Sequence[Listener]
    kernels: InstructionSet | None  # None for the reference backend
    path: Path  # of the model
    tokenizer_check: TokenizerCheck
    worker_command: Sequence[str]
    link: GatewayLink | None
