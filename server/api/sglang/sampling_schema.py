"""`sampling_params` of POST /generate."""

from __future__ import annotations

from typing import Annotated

from numaserve.server.api.fields import (
    MAX_INT,
    MAX_N,
    MAX_STOP_TOKEN_IDS,
    LogitBias,
    Neutral,
    StopStrings,
    TokenId,
    Unused,
    neutral,
    no_overflow,
)
from numaserve.server.api.openai.constraint_fields import SGLangConstraintFields
from numaserve.server.api.sampling import Sampling
from pydantic import Field

DEFAULT_MAX_NEW_TOKENS = 128


class SamplingParameters(SGLangConstraintFields):
    """How to sample, and when to stop, in SGLang's names."""

    max_new_tokens: Annotated[int, Field(ge=0, le=MAX_INT)] | None = None
    """Tokens to generate at most; 128 unless set. 0 scores the prompt only."""
    min_new_tokens: Annotated[int, Field(ge=0, le=MAX_INT)] | None = None
    """Nothing ends the answer before so many."""
    n: Annotated[int, Field(ge=1, le=MAX_N)] | None = None
    """Answers to each prompt; 1 unless set."""
    temperature: Annotated[float, Field(ge=0, le=2), no_overflow] | None = None
    """0 is greedy; 1 unless set."""
    top_p: Annotated[float, Field(ge=0, le=1), no_overflow] | None = None
    """Sample from the likeliest tokens up to this total probability; 0 takes the likeliest alone; 1 unless set."""
    top_k: Annotated[int, Field(ge=-1, le=MAX_INT)] | None = None
    """Sample from so many tokens; -1 and 0, the default, from all."""
    min_p: Annotated[float, Field(ge=0, le=1), no_overflow] | None = None
    """The least probability, as a part of the largest one; 0 unless set."""
    frequency_penalty: Annotated[float, Field(ge=-2, le=2), no_overflow] | None = None
    """Taken off the logit of a token once for each time that it was generated; 0 unless set."""
    presence_penalty: Annotated[float, Field(ge=-2, le=2), no_overflow] | None = None
    """Taken off the logit of every token that was generated; 0 unless set."""
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100), no_overflow] | None = None
    """Divides positive logits of tokens that came, multiplies others; 1 unless set."""
    logit_bias: LogitBias | None = None
    """A number for each token id, added to its logit."""
    sampling_seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    """Random unless set. Answer i of `n` has the seed + i."""
    stop: StopStrings | None = None
    """A string or some, which may span tokens and are not part of the answer."""
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MAX_STOP_TOKEN_IDS)] | None = None
    """Tokens that end the answer."""
    ignore_eos: bool | None = None
    """Go on behind the model's own end."""
    skip_special_tokens: bool | None = None
    """Leave special tokens out of the text; true unless set."""
    no_stop_trim: bool | None = None
    """A stop string, or a stop token that has a text, is a part of the answer."""

    custom_params: Annotated[Neutral, neutral()] = None
    stop_regex: Annotated[Neutral, neutral([])] = None
    spaces_between_special_tokens: Unused = None  # only tokenizers in Python know the difference
    stream_interval: Unused = None  # every token is sent when it is there

    def sampling(self, cache_salt: str | None) -> Sampling:
        """How to sample, as it was asked for."""
        given = {name: value for name in _SAME if (value := getattr(self, name)) is not None}
        given |= {name: value for name, value in self._renamed(cache_salt).items() if value is not None}
        return Sampling(**given)

    def _renamed(self, cache_salt: str | None) -> dict[str, object]:
        return {
            "min_tokens": self.min_new_tokens,
            "seed": self.sampling_seed,
            "logit_bias": {int(token): bias for token, bias in (self.logit_bias or {}).items()},
            "cache_salt": cache_salt,
            "include_stop": self.no_stop_trim,
        }


_SAME = (
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "skip_special_tokens",
)
