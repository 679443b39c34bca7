"""Everything the endpoints need, handed to them once."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import cached_property

from numaserve.server.api.auth import ApiKeys
from numaserve.server.api.body.route import Bodies
from numaserve.server.engine.types import EngineProtocol
from numaserve.server.metrics.metrics import Metrics
from numaserve.server.tokenizer.types import TokenizerProtocol


@dataclass(frozen=True)
class ApiLimits:
    """How much one request may ask for."""

    context_length: int  # tokens of prompt and output together
    vocab_size: int  # token ids the model has rows for
    max_sequences: int = 512  # prompts x n of one request; more than the queue holds could never be admitted
    max_body_bytes: int = 32 * 2**20
    body_timeout_seconds: float = 60.0  # for the whole body to arrive
    max_headers: int = 100


@dataclass(frozen=True)
class ApiContext:
    """What the application is built from. Without `api_keys` every caller is served."""

    engine: EngineProtocol
    tokenizer: TokenizerProtocol
    metrics: Metrics
    model_name: str  # the name clients use
    model_path: str  # where it was loaded from
    version: str
    limits: ApiLimits
    api_keys: ApiKeys | None = None
    log_prompts: bool = False
    strict_fields: bool = False  # refuse fields that are not known
    created: int = field(default_factory=lambda: int(time.time()))

    @cached_property
    def bodies(self) -> Bodies:
        """What decodes the bodies of requests."""
        limits = self.limits
        return Bodies(limits.context_length, limits.max_body_bytes, refuse_unknown=self.strict_fields)

    @property
    def vocab_size(self) -> int:
        """Token ids that both the tokenizer and the model know: models pad their vocabulary, tokenizers add to it."""
        return min(self.limits.vocab_size, self.tokenizer.vocab_size)

    @property
    def system_fingerprint(self) -> str:
        """Changes when the same seed may give other tokens: with another version of the server."""
        return f"numaserve-{self.version}"
