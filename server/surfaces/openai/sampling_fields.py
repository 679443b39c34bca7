"""The fields that /v1/chat/completions and /v1/completions share, and their ranges."""

from __future__ import annotations

import dataclasses
from typing import Annotated

from numaserve.server.generation.token_choice import Sampling
from numaserve.server.http.fields.types import (
    MAX_INT,
    MAX_METADATA,
    MAX_N,
    MAX_RESUMED,
    MAX_RESUMED_STOPS,
    MAX_STOP_TOKEN_IDS,
    AdapterName,
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
from pydantic import Field, StringConstraints, model_validator


class StreamOptions(Strict):
    """The token counts that a stream contains in addition to the text."""

    include_usage: bool | None = None
    """Send the token usage in a separate chunk at the end."""
    continuous_usage_stats: bool | None = None
    """Extension of vLLM: with `include_usage`, send the usage so far in every chunk."""
    include_obfuscation: bool | None = None
    """No effect: the server does not pad events against traffic analysis."""


class SamplingFields(Strict):
    """The fields for sampling, stop conditions and the form of the response."""

    model: ShortText | None = None
    """Name of the served model; any other name returns status 404."""
    n: Annotated[int, Field(ge=1, le=MAX_N)] | None = None
    """Number of choices; 1 unless set."""
    max_tokens: Annotated[int, Field(ge=0, le=MAX_INT)] | None = None
    """Maximum number of tokens to generate; 16 unless set. 0 only scores the prompt."""
    temperature: Annotated[float, Field(ge=0, le=2), no_overflow] | None = None
    """Sampling temperature; 0 is greedy; 1 unless set."""
    top_p: Annotated[float, Field(ge=0, le=1), no_overflow] | None = None
    """Sample from the most likely tokens up to this total probability. 0 always takes the most likely token; 1 unless
    set."""
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    """Seed of the random numbers; random unless set. Choice i of `n` uses `seed` + i."""
    stop: StopStrings | None = None
    """Stop string, or a list of stop strings. Each ends the response and is not part of it. A stop string can span
    tokens."""
    logit_bias: LogitBias | None = None
    """Map from token ids to numbers that are added to the tokens' logits."""
    presence_penalty: Annotated[float, Field(ge=-2, le=2), no_overflow] | None = None
    """Value subtracted from the logit of every generated token; 0 unless set."""
    frequency_penalty: Annotated[float, Field(ge=-2, le=2), no_overflow] | None = None
    """Value subtracted from a token's logit for each time the token was generated; 0 unless set."""
    stream: bool | None = None
    """Stream the response as server-sent events."""
    stream_options: StreamOptions | None = None
    """Settings of a stream; allowed only with `stream`: true."""

    # Extensions, under the names of vLLM and SGLang.
    top_k: Annotated[int, Field(ge=-1, le=MAX_INT)] | None = None
    """Extension: number of most likely tokens to sample from; -1 and 0, the default, sample from all tokens."""
    min_p: Annotated[float, Field(ge=0, le=1), no_overflow] | None = None
    """Extension: minimum probability of a token, relative to the most likely token; 0 unless set."""
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100), no_overflow] | None = None
    """Extension: penalty for tokens of the prompt and the output. Divides their positive logits and multiplies their
    other logits; 1 unless set."""
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MAX_STOP_TOKEN_IDS)] | None = None
    """Extension: ids of tokens that end the response."""
    ignore_eos: bool | None = None
    """Extension: continue after the model's end-of-sequence token."""
    min_tokens: Annotated[int, Field(ge=0, le=MAX_INT)] | None = None
    """Extension: minimum number of tokens to generate. A response ends earlier only if its constraint allows no further
    token."""
    skip_special_tokens: bool | None = None
    """Extension: omit special tokens from the text; true unless set."""
    cache_salt: Annotated[Text, StringConstraints(max_length=256)] | None = None
    """Extension: salt of the prefix cache. A request shares cached prefixes only with requests of the same salt and the
    same cache group of API keys."""

    speculative: Speculative | None = None
    """Extension: drafters to use for speculative decoding: `auto`, the default, for all of the server's drafters,
    `off`, or names. The response is the same."""

    prompt_logprobs: TopLogprobs | None = None
    """Extension: return the log-probabilities of the prompt tokens and of this number of most likely tokens; not with
    `stream`."""
    return_token_ids: bool | None = None
    """Extension: return the token ids of the prompt and the response, as `prompt_token_ids` and `token_ids`."""
    resume_token_ids: Annotated[list[TokenId], Field(max_length=MAX_RESUMED)] | None = None
    """Extension: initial tokens of the response, generated by another server for the same request and seed. A stream
    contains only the tokens after them; not with `n` or log-probabilities."""
    return_tokens_as_token_ids: bool | None = None
    """Extension: identify tokens in log-probabilities by id, such as `token_id:5`."""
    include_stop_str_in_output: bool | None = None
    """Extension: include the matched stop string, or the text of the stop token, in the response."""
    no_stop_trim: bool | None = None
    """Extension: SGLang's name for `include_stop_str_in_output`."""

    priority: Priority | None = None
    """Extension: priority among the client's own requests; lower numbers start first; 0 unless set."""

    lora_path: AdapterName | None = None
    """Extension: name of a loaded LoRA adapter, as in SGLang; `model` can name the adapter instead."""

    # No effect on the result.
    user: ShortText | None = None
    """No effect."""
    metadata: Annotated[dict[ShortText, ShortText], Field(max_length=MAX_METADATA)] | None = None
    """No effect."""
    safety_identifier: ShortText | None = None
    """No effect."""
    prompt_cache_key: ShortText | None = None
    """No effect."""
    prompt_cache_retention: ShortText | None = None
    """No effect."""
    request_id: ShortText | None = None
    """No effect: the X-Request-Id header identifies a request."""
    spaces_between_special_tokens: bool | None = None
    """No effect: the field applies only to tokenizers that are written in Python, and the server uses none."""
    stream_reasoning: bool | None = None
    """No effect."""

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
        logprobs = getattr(self, "logprobs", None)  # true or false for chat; a number, also 0, for completions
        scored = (logprobs is not None and logprobs is not False) or self.prompt_logprobs is not None
        if self.resume_token_ids and ((self.n or 1) > 1 or scored):
            raise conflict("resume_token_ids", "'resume_token_ids' requires 'n': 1 and no log-probabilities")
        # These tokens are searched for stop strings at once, in the event loop.
        stops = self.stop or ()
        if len(self.resume_token_ids or ()) * len(stops) * max(map(len, stops), default=0) > MAX_RESUMED_STOPS:
            raise conflict(
                "resume_token_ids",
                "'resume_token_ids' is too long for these stop strings; send fewer tokens or shorter stop strings",
            )
        return self

    def most_logprobs(self, own: int | None) -> int:
        """Return the number of most likely tokens that prompt or response need; `own` is the response's. -1: none."""
        return max(-1 if each is None else each for each in (own, self.prompt_logprobs))

    def sampling(self) -> Sampling:
        """Return the sampling parameters of the request."""
        given = {name: value for name in _SAMPLING if (value := getattr(self, name, None)) is not None}
        given["include_stop"] = bool(self.include_stop_str_in_output or self.no_stop_trim)
        return Sampling(**given | {"logit_bias": {int(token): bias for token, bias in (self.logit_bias or {}).items()}})


_SAMPLING = frozenset(field.name for field in dataclasses.fields(Sampling))
