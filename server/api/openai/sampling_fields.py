"""The fields that /v1/chat/completions and /v1/completions share, and their ranges."""

from __future__ import annotations

import dataclasses
from typing import Annotated

from numaserve.server.api.fields import (
    MAX_INT,
    MAX_METADATA,
    MAX_N,
    MAX_RESUMED,
    MAX_RESUMED_STOPS,
    MAX_STOP_TOKEN_IDS,
    LogitBias,
    Neutral,
    Priority,
    ShortText,
    Speculative,
    StopStrings,
    Strict,
    Text,
    TokenId,
    TopLogprobs,
    conflict,
    neutral,
    no_overflow,
)
from numaserve.server.api.sampling import Sampling
from pydantic import Field, StringConstraints, model_validator


class StreamOptions(Strict):
    """The additions to a stream beside its text."""

    include_usage: bool | None = None
    """Usage comes in a chunk of its own, the last one."""
    continuous_usage_stats: bool | None = None
    """vLLM's: with `include_usage`, usage so far is in every chunk."""
    include_obfuscation: bool | None = None
    """Without effect: events are not padded against traffic analysis."""


class SamplingFields(Strict):
    """Fields that say how to sample, when to stop and how to send the answer."""

    model: ShortText | None = None
    """A served name; another one is a 404."""
    n: Annotated[int, Field(ge=1, le=MAX_N)] | None = None
    """Choices; 1 unless set."""
    max_tokens: Annotated[int, Field(ge=0, le=MAX_INT)] | None = None
    """Tokens to generate at most; 16 unless set. 0 scores the prompt only."""
    temperature: Annotated[float, Field(ge=0, le=2), no_overflow] | None = None
    """0 is greedy; 1 unless set."""
    top_p: Annotated[float, Field(ge=0, le=1), no_overflow] | None = None
    """Sample from the likeliest tokens up to this total probability; 0 takes the likeliest alone; 1 unless set."""
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    """Random unless set. Choice i of `n` has `seed` + i."""
    stop: StopStrings | None = None
    """A string or some, which may span tokens and are not part of the answer."""
    logit_bias: LogitBias | None = None
    """A number for each token id, added to its logit."""
    presence_penalty: Annotated[float, Field(ge=-2, le=2), no_overflow] | None = None
    """Taken off the logit of every token that was generated; 0 unless set."""
    frequency_penalty: Annotated[float, Field(ge=-2, le=2), no_overflow] | None = None
    """Taken off once for each time that it was generated; 0 unless set."""
    stream: bool | None = None
    """Answer in events, as the tokens come."""
    stream_options: StreamOptions | None = None
    """Settings of a stream; they need `stream`."""

    # Extensions, with the names vLLM and SGLang use.
    top_k: Annotated[int, Field(ge=-1, le=MAX_INT)] | None = None
    """Extension: sample from so many tokens; -1 and 0, the default, from all."""
    min_p: Annotated[float, Field(ge=0, le=1), no_overflow] | None = None
    """Extension: the least probability, as a part of the largest one; 0 unless set."""
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100), no_overflow] | None = None
    """Extension: divides positive logits of tokens that came, multiplies others; 1 unless set."""
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MAX_STOP_TOKEN_IDS)] | None = None
    """Extension: tokens that end the answer."""
    ignore_eos: bool | None = None
    """Extension: go on behind the model's own end."""
    min_tokens: Annotated[int, Field(ge=0, le=MAX_INT)] | None = None
    """Extension: nothing ends the answer before so many, unless a constraint allows nothing but its end."""
    skip_special_tokens: bool | None = None
    """Extension: leave special tokens out of the text; true unless set."""
    cache_salt: Annotated[Text, StringConstraints(max_length=256)] | None = None
    """Extension: cached prefixes are shared only with requests of the same salt, and of the same cache group of API
    keys."""

    speculative: Speculative | None = None
    """Extension: what may guess the next tokens, of what the server has: `auto`, the default, for all, `off`, or names.
    The answer is the same."""

    prompt_logprobs: TopLogprobs | None = None
    """Extension: log-probabilities of the prompt's tokens, and so many of the likeliest; not with `stream`."""
    return_token_ids: bool | None = None
    """Extension: give the token ids of prompt and answer, as `prompt_token_ids` and `token_ids`."""
    resume_token_ids: Annotated[list[TokenId], Field(max_length=MAX_RESUMED)] | None = None
    """Extension: tokens with which the answer begins, as another server has generated them for the same request and
    seed. Of a stream only what follows is sent; not with `n` or log-probabilities."""
    return_tokens_as_token_ids: bool | None = None
    """Extension: log-probabilities name a token `token_id:5`."""
    include_stop_str_in_output: bool | None = None
    """Extension: a stop string, or a stop token that has a text, is a part of the answer."""
    no_stop_trim: bool | None = None
    """Extension: SGLang's name for it."""

    priority: Priority | None = None
    """Extension: which of the client's own requests begins earlier: the one with the lower number; 0 unless set."""

    # Without effect on the result.
    user: ShortText | None = None
    """Without effect."""
    metadata: Annotated[dict[ShortText, ShortText], Field(max_length=MAX_METADATA)] | None = None
    """Without effect."""
    safety_identifier: ShortText | None = None
    """Without effect."""
    prompt_cache_key: ShortText | None = None
    """Without effect."""
    prompt_cache_retention: ShortText | None = None
    """Without effect."""
    request_id: ShortText | None = None
    """Without effect: the X-Request-Id header names a request here."""
    spaces_between_special_tokens: bool | None = None
    """Without effect: only tokenizers in Python know the difference."""
    stream_reasoning: bool | None = None
    """Without effect."""

    # Known from vLLM and SGLang, and not supported. Routers send the neutral values with every request.
    return_hidden_states: Annotated[Neutral, neutral(False)] = None
    truncate_prompt_tokens: Annotated[Neutral, neutral()] = None
    use_beam_search: Annotated[Neutral, neutral(False)] = None
    length_penalty: Annotated[Neutral, neutral(1, 1.0)] = None
    allowed_token_ids: Annotated[Neutral, neutral([])] = None
    bad_words: Annotated[Neutral, neutral([])] = None
    logits_processors: Annotated[Neutral, neutral([])] = None
    custom_logit_processor: Annotated[Neutral, neutral()] = None
    stop_regex: Annotated[Neutral, neutral([])] = None
    lora_path: Annotated[Neutral, neutral()] = None
    session_params: Annotated[Neutral, neutral()] = None
    kv_transfer_params: Annotated[Neutral, neutral()] = None
    prompt_embeds: Annotated[Neutral, neutral()] = None

    @model_validator(mode="after")
    def _stream_options_need_a_stream(self) -> SamplingFields:
        if self.stream_options is not None and not self.stream:
            raise conflict("stream_options", "'stream_options' needs 'stream': true")
        if self.stream and self.prompt_logprobs is not None:
            raise conflict("prompt_logprobs", "'prompt_logprobs' is not supported with 'stream': true")
        return self

    @model_validator(mode="after")
    def _one_answer_is_resumed(self) -> SamplingFields:
        logprobs = getattr(self, "logprobs", None)  # of chat true or false, of completions a number, 0 too
        scored = (logprobs is not None and logprobs is not False) or self.prompt_logprobs is not None
        if self.resume_token_ids and ((self.n or 1) > 1 or scored):
            raise conflict("resume_token_ids", "'resume_token_ids' requires 'n': 1 and no log-probabilities")
        # The text of these tokens is looked through for stop strings at once, while nobody else is served.
        stops = self.stop or ()
        if len(self.resume_token_ids or ()) * len(stops) * max(map(len, stops), default=0) > MAX_RESUMED_STOPS:
            raise conflict(
                "resume_token_ids",
                "'resume_token_ids' is too long for these stop strings; send fewer tokens or shorter stop strings",
            )
        return self

    def most_logprobs(self, own: int | None) -> int:
        """As many of the likeliest as prompt or answer need, of which `own` are the answer's; -1 for none at all."""
        return max(-1 if each is None else each for each in (own, self.prompt_logprobs))

    def sampling(self) -> Sampling:
        """How to sample, as it was asked for."""
        given = {name: value for name in _SAMPLING if (value := getattr(self, name, None)) is not None}
        given["include_stop"] = bool(self.include_stop_str_in_output or self.no_stop_trim)
        return Sampling(**given | {"logit_bias": {int(token): bias for token, bias in (self.logit_bias or {}).items()}})


_SAMPLING = frozenset(field.name for field in dataclasses.fields(Sampling))
