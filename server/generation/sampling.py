"""The conversion of a client's request to engine requests and sampling parameters."""

import secrets
from collections.abc import Iterable
from typing import TypeVar

from numaserve.server.config.option_types import drafters_meant
from numaserve.server.generation.asked import Asked, Chat, Prompt
from numaserve.server.generation.context import ApiContext
from numaserve.server.generation.token_choice import Sampling
from numaserve.server.http.errors import Overflow, bad_request, context_length_exceeded, token_unknown
from numaserve.server.http.explain import CONFLICT
from numaserve.server.scheduler.adapter import Adapter
from numaserve.server.scheduler.client import Client
from numaserve.server.scheduler.request import Pooling, Request
from numaserve.server.structured.types import MatcherFactory
from numaserve.workers.interface.protocol import SamplingParams

_T = TypeVar("_T")
_SEED_MASK = 2**63 - 1
# Logits divided by less overflow a float; long before that, the tokens equal those of greedy sampling.
_GREEDY_BELOW = 1e-5


def output_limit(prompt_tokens: int, asked: int | None, default: int | None, context_length: int, param: str) -> int:
    """Return the number of tokens that may be generated after a prompt: `asked`, else `default`, else all that fit.

    Raises `ApiError` with OpenAI's code when the prompt, or prompt and asked output, exceed the context.
    """
    room = context_length - prompt_tokens
    if room < 1 or (asked is not None and asked > room):
        output = f" and {asked} output tokens are requested" if asked is not None and room >= 1 else ""
        raise context_length_exceeded(
            f"This model's maximum context length is {context_length} tokens, including at least one output token, "
            f"but the prompt has {prompt_tokens} tokens{output}. Shorten the prompt or request fewer output tokens.",
            param,
            Overflow(prompt_tokens, min(context_length, prompt_tokens - 1)) if room < 1 else None,
        )
    if asked is not None:
        return asked
    return room if default is None else min(default, room)


def generation_requests(
    context: ApiContext,
    asked: Asked,
    prompt: Prompt,
    request_id: str,
    *,
    client: Client,
    matcher: MatcherFactory | None = None,
    adapter: Adapter | None = None,
) -> list[Request]:
    """Return the `n` sequences of one prompt. Sequence i has seed `seed + i`; the default seed is random.

    The sequences belong to `client`; `matcher` makes their constraints, and `adapter` changes the model.
    """
    sampling, length, param = asked.sampling, len(prompt.tokens), asked.input.param
    if asked.pool is not None:
        pooling = Pooling(asked.pool, prompt.second_text)
        return [_pooled(context, asked, prompt, request_id, client=client, pooling=pooling, adapter=adapter)]
    limit = output_limit(length, asked.max_tokens, asked.default_max_tokens, context.limits.context_length, param)
    if sampling.min_tokens > limit:
        message = f"'min_tokens' is {sampling.min_tokens}, but at most {limit} tokens can be generated."
        raise bad_request(message, "min_tokens", CONFLICT)
    if asked.resumed and len(asked.resumed) >= limit:
        message = (
            f"'resume_token_ids' has {len(asked.resumed)} tokens, which leaves nothing to generate (limit {limit})."
        )
        raise bad_request(message, "resume_token_ids", CONFLICT)
    _known("resume_token_ids", asked.resumed, context.vocab_size)
    if asked.prompt_logprobs and prompt.images and context.vision is not None and context.vision.settings.whole:
        message = "Log-probabilities of a prompt with images are not supported with this model. Ask without images."
        raise bad_request(message, param, CONFLICT)
    shown = context.marker_tokens if isinstance(asked.input, Chat) else frozenset[int]()
    seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
    eos = frozenset[int]() if sampling.ignore_eos else context.tokenizer.eos_token_ids
    stop_ids = eos | _known("stop_token_ids", sampling.stop_token_ids, context.vocab_size)
    _known("logit_bias", sampling.logit_bias, context.vocab_size)
    _known("token_ids_logprob", asked.token_ids_logprob, context.vocab_size)
    return [
        Request(
            request_id=f"{request_id}-{index}",
            prompt=prompt.tokens,
            sampling=_sampling(
                asked,
                context.sampling_defaults,
                seed=(seed + index) & _SEED_MASK,
                prompt_tokens=length,
                stop_ids=sorted(stop_ids),
            ),
            # The engine has no notion of a sequence without output: one token is generated and dropped.
            max_new_tokens=max(1, limit),
            min_new_tokens=sampling.min_tokens,
            stop=tuple(sampling.stop),
            stop_token_ids=stop_ids,
            prompt_logprobs=asked.prompt_logprobs,
            skip_special_tokens=sampling.skip_special_tokens,
            include_stop=sampling.include_stop,
            shown_tokens=shown,
            cache_salt=sampling.cache_salt,
            drafters=None if sampling.speculative is None else frozenset(drafters_meant(sampling.speculative)),
            prediction=prompt.prediction,
            matcher=matcher,
            client=client,
            priority=asked.priority,
            generated=tuple(asked.resumed),
            images=prompt.images,
            adapter=adapter,
        )
        for index in range(sampling.n)
    ]


def _pooled(
    context: ApiContext,
    asked: Asked,
    prompt: Prompt,
    request_id: str,
    *,
    client: Client,
    pooling: Pooling,
    adapter: Adapter | None,
) -> Request:
    """Return the request for a prompt to be pooled: it may fill the context, as nothing comes after it."""
    length, limit = len(prompt.tokens), context.limits.context_length
    if length > limit:
        raise context_length_exceeded(
            f"This model's maximum context length is {limit} tokens, but the input has {length} tokens. "
            "Shorten the input.",
            asked.input.param,
        )
    return Request(
        request_id,
        prompt.tokens,
        SamplingParams(),
        max_new_tokens=0,
        pooling=pooling,
        client=client,
        priority=asked.priority,
        adapter=adapter,
    )


def _first(asked: _T | None, default: _T | None, otherwise: _T) -> _T:
    if asked is not None:
        return asked
    return otherwise if default is None else default


def _sampling(
    request: Asked, defaults: Sampling, *, seed: int, prompt_tokens: int, stop_ids: list[int]
) -> SamplingParams:
    asked = request.sampling
    temperature = _first(asked.temperature, defaults.temperature, 1.0)
    top_p = _first(asked.top_p, defaults.top_p, 1.0)
    top_k = max(0, _first(asked.top_k, defaults.top_k, 0))
    if top_p == 0.0:  # the smallest set of tokens that has any probability: the most likely token
        top_p, top_k = 1.0, 1
    return SamplingParams(
        temperature=0.0 if temperature < _GREEDY_BELOW else temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=_first(asked.min_p, defaults.min_p, 0.0),
        repetition_penalty=_first(asked.repetition_penalty, defaults.repetition_penalty, 1.0),
        presence_penalty=asked.presence_penalty,
        frequency_penalty=asked.frequency_penalty,
        seed=seed,
        logit_bias=dict(asked.logit_bias),
        logprobs=request.logprobs,
        token_ids_logprob=list(request.token_ids_logprob),
        min_position=prompt_tokens + asked.min_tokens if asked.min_tokens else 0,
        suppress=stop_ids if asked.min_tokens else [],
    )


def _known(param: str, tokens: Iterable[int], vocab_size: int) -> frozenset[int]:
    ids = frozenset(tokens)
    if ids and max(ids) >= vocab_size:
        raise token_unknown(param, max(ids), vocab_size)
    return ids


def check_token_ids(tokens: list[int], vocab_size: int, param: str) -> None:
    """Raise `ApiError` unless every id is in the vocabulary."""
    if tokens and max(tokens) >= vocab_size:
        raise token_unknown(param, max(tokens), vocab_size)
