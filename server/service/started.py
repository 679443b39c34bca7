"""A server that has an address, keys, a processor and a model."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from numaserve.server.config.serve import ServeConfig
from numaserve.server.connection.listen import Listener
from numaserve.server.service.bind import GatewayLink
from numaserve.server.service.checks.tokenizer_check import TokenizerCheck
from numaserve.server.service.process.key_sources import KeySources


@dataclass(frozen=True)
class Started:
    """The results of the first checks."""

    config: ServeConfig
    key_sources: KeySources
    listeners: Sequence[Listener]
    instructions: str | None  # of the kernels; None for the backend that has none
    path: Path  # of the model
    tokenizer_check: TokenizerCheck
    worker_command: Sequence[str]
    link: GatewayLink | None
