"""The object `sampling_params` of POST /generate."""

from __future__ import annotations

from typing import Annotated

from numaserve.server.generation.token_choice import Sampling
from numaserve.server.http.fields.types import (
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
from numaserve.server.surfaces.openai.constraint_fields import SGLangConstraintFields
from pydantic import Field

DEFAULT_MAX_NEW_TOKENS = 128


class SamplingParameters(SGLangConstraintFields):
    """Sampling parameters and stop conditions, under SGLang's names."""

    max_new_tokens: Annotated[int, Field(ge=0, le=MAX_INT)] | None = None
    """Maximum number of tokens to generate; 128 unless set. 0 only scores the prompt."""
    min_new_tokens: Annotated[int, Field(ge=0, le=MAX_INT)] | None = None
    """Minimum number of tokens to generate. A response ends earlier only if its constraint allows no further token."""
    n: Annotated[int, Field(ge=1, le=MAX_N)] | None = None
    """Number of responses to each prompt; 1 unless set."""
    temperature: Annotated[float, Field(ge=0, le=2), no_overflow] | None = None
    """Sampling temperature; 0 is greedy; 1 unless set."""
    top_p: Annotated[float, Field(ge=0, le=1), no_overflow] | None = None
    """Sample from the most likely tokens up to this total probability. 0 always takes the most likely token; 1 unless
    set."""
    top_k: Annotated[int, Field(ge=-1, le=MAX_INT)] | None = None
    """Number of most likely tokens to sample from; -1 and 0, the default, sample from all tokens."""
    min_p: Annotated[float, Field(ge=0, le=1), no_overflow] | None = None
    """Minimum probability of a token, relative to the most likely token; 0 unless set."""
    frequency_penalty: Annotated[float, Field(ge=-2, le=2), no_overflow] | None = None
    """Value subtracted from a token's logit for each time the token was generated; 0 unless set."""
    presence_penalty: Annotated[float, Field(ge=-2, le=2), no_overflow] | None = None
    """Value subtracted from the logit of every generated token; 0 unless set."""
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100), no_overflow] | None = None
    """Penalty for tokens of the prompt and the output: divides their positive logits and multiplies their other logits;
    1 unless set."""
    logit_bias: LogitBias | None = None
    """Map from token ids to numbers that are added to the tokens' logits."""
    sampling_seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    """Seed of the random numbers; random unless set. Response i of `n` uses the seed + i."""
    stop: StopStrings | None = None
    """String or list of strings that end the response. A stop string can span tokens and is not part of the
    response."""
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MAX_STOP_TOKEN_IDS)] | None = None
    """Ids of tokens that end the response."""
    ignore_eos: bool | None = None
    """Continue after the model's end-of-sequence token."""
    skip_special_tokens: bool | None = None
    """Omit special tokens from the text; true unless set."""
    no_stop_trim: bool | None = None
    """Include the matched stop string, or the text of the stop token, in the response."""

    custom_params: Annotated[Neutral, neutral()] = None
    stop_regex: Annotated[Neutral, neutral([])] = None
    spaces_between_special_tokens: Unused = None  # only tokenizers in Python know the difference
    stream_interval: Unused = None  # every token is sent at once

    def sampling(self, cache_salt: str | None) -> Sampling:
        """Return the sampling parameters of the request."""
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
