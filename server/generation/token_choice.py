"""The sampling parameters of a request, independent of the API surface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from numaserve.server.config.option_types import SpeculativeName


@dataclass(frozen=True)
class Sampling:
    """The sampling of tokens, and the conditions that end it. None stands for the model's default."""

    n: int = 1  # sequences of each prompt; sequence i has seed `seed` + i
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None  # 0 and -1: all
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None  # None: random
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    skip_special_tokens: bool = True
    include_stop: bool = False  # keep the stop string or token in the text
    cache_salt: str = ""
    speculative: Sequence[SpeculativeName] | None = None  # allowed drafters of the server; None: all

    def given(self) -> dict[str, object]:
        """Return the fields that differ from their default."""
        return {name: value for name, value in asdict(self).items() if value != getattr(_NEUTRAL, name)}


_NEUTRAL = Sampling()
