"""Requests to the engine and parameters of the sampler, made of the fields of an HTTP request."""

import secrets
from dataclasses import dataclass
from typing import TypeVar

from numaserve.server.api.context import ApiContext
from numaserve.server.api.errors import bad_request, context_length_exceeded, token_unknown
from numaserve.server.api.explain import CONFLICT
from numaserve.server.api.schemas import SamplingFields
from numaserve.server.engine.types import GenerationRequest
from numaserve.workers.protocol import SamplingParams

_T = TypeVar("_T")
_SEED_MASK = 2**63 - 1
# Logits divided by less overflow a float; the tokens are those of greedy long before that.
_GREEDY_BELOW = 1e-5


@dataclass(frozen=True)
class Wanted:
    """The part of a generation that the two endpoints decide differently."""

    output_limit: int  # tokens; 0 to score the prompt only
    logprobs: int  # as in `SamplingParams`
    prompt_logprobs: bool = False


def output_limit(prompt_tokens: int, asked: int | None, default: int | None, context_length: int, param: str) -> int:
    """The tokens that may be generated after a prompt: as many as were asked for, else `default`, else all that fit.

    Raises `ApiError` with OpenAI's code when the prompt, or prompt and asked output, exceed the context.
    """
    room = context_length - prompt_tokens
    if room < 1 or (asked is not None and asked > room):
        output = f" and {asked} are asked for as output" if asked is not None and room >= 1 else ""
        raise context_length_exceeded(
            f"This model's maximum context length is {context_length} tokens, at least one of them for output, "
            f"but the prompt has {prompt_tokens} tokens{output}. Shorten the prompt or ask for less output.",
            param,
        )
    if asked is not None:
        return asked
    return room if default is None else min(default, room)


def generation_requests(
    context: ApiContext, body: SamplingFields, prompt: list[int], wanted: Wanted, request_id: str
) -> list[GenerationRequest]:
    """The `n` sequences of one prompt. Sequence i has seed `seed + i`, the seed being random when none was given."""
    if body.min_tokens is not None and body.min_tokens > wanted.output_limit:
        raise bad_request(
            "'min_tokens' is larger than the number of tokens that may be generated.", "min_tokens", CONFLICT
        )
    seed = secrets.randbits(63) if body.seed is None else body.seed
    eos = frozenset[int]() if body.ignore_eos else context.tokenizer.eos_token_ids
    stop_ids = eos | _stop_token_ids(body, context.vocab_size)
    logit_bias = _logit_bias(body, context.vocab_size)
    return [
        GenerationRequest(
            request_id=f"{request_id}-{index}",
            prompt=prompt,
            sampling=_sampling(
                body,
                context.sampling_defaults,
                seed=(seed + index) & _SEED_MASK,
                logit_bias=logit_bias,
                logprobs=wanted.logprobs,
                prompt_tokens=len(prompt),
                stop_ids=sorted(stop_ids),
            ),
            # The engine has no notion of a sequence without output: one token is generated and dropped.
            max_new_tokens=max(1, wanted.output_limit),
            min_new_tokens=body.min_tokens or 0,
            stop=tuple(body.stop or ()),
            stop_token_ids=stop_ids,
            prompt_logprobs=wanted.prompt_logprobs,
            skip_special_tokens=body.skip_special_tokens is not False,
            cache_salt=body.cache_salt or "",
        )
        for index in range(body.n or 1)
    ]


def _first(asked: _T | None, default: _T | None, otherwise: _T) -> _T:
    if asked is not None:
        return asked
    return otherwise if default is None else default


def _sampling(
    body: SamplingFields,
    defaults: SamplingFields,
    *,
    seed: int,
    logit_bias: dict[int, float],
    logprobs: int,
    prompt_tokens: int,
    stop_ids: list[int],
) -> SamplingParams:
    temperature = _first(body.temperature, defaults.temperature, 1.0)
    top_p = _first(body.top_p, defaults.top_p, 1.0)
    top_k = max(0, _first(body.top_k, defaults.top_k, 0))
    if top_p == 0.0:  # the smallest set of tokens that has any probability: the most likely one
        top_p, top_k = 1.0, 1
    return SamplingParams(
        temperature=0.0 if temperature < _GREEDY_BELOW else temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=_first(body.min_p, defaults.min_p, 0.0),
        repetition_penalty=_first(body.repetition_penalty, defaults.repetition_penalty, 1.0),
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        seed=seed,
        logit_bias=logit_bias,
        logprobs=logprobs,
        min_position=prompt_tokens + body.min_tokens if body.min_tokens else 0,
        suppress=stop_ids if body.min_tokens else [],
    )


def _logit_bias(body: SamplingFields, vocab_size: int) -> dict[int, float]:
    bias = {int(token): value for token, value in (body.logit_bias or {}).items()}
    for token in bias:
        if token >= vocab_size:
            raise token_unknown("logit_bias", token, vocab_size)
    return bias


def _stop_token_ids(body: SamplingFields, vocab_size: int) -> frozenset[int]:
    ids = frozenset(body.stop_token_ids or ())
    if ids and max(ids) >= vocab_size:
        raise token_unknown("stop_token_ids", max(ids), vocab_size)
    return ids


def check_token_ids(tokens: list[int], vocab_size: int, param: str) -> None:
    """Raise `ApiError` unless every id is in the vocabulary."""
    if tokens and max(tokens) >= vocab_size:
        raise token_unknown(param, max(tokens), vocab_size)
