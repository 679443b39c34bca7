"""Scores of pairs of a query and a document."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from fastapi import Request
from numaserve.server.generation.answer_size import AnswerSize
from numaserve.server.generation.asked import Asked, Pair, Texts
from numaserve.server.generation.classifier import Activation, activated, sigmoid
from numaserve.server.generation.classifier_inputs import WHOLE, Cut, items_asked
from numaserve.server.generation.context import ApiContext
from numaserve.server.generation.judge import AFTER, BEFORE, Judge, question
from numaserve.server.generation.many import Ends, Inputs, ends_of
from numaserve.server.generation.prompts import check_text_length, encode
from numaserve.server.generation.purpose import Classifies
from numaserve.server.generation.served_purpose import scorer
from numaserve.server.generation.start import check_model
from numaserve.server.generation.token_choice import Sampling
from numaserve.server.http.access_log import record_of
from numaserve.server.http.errors import bad_request
from numaserve.server.text.work import Turns

_TOO_LONG = "a query and its document have more than {} tokens. Shorten the document."


@dataclass(frozen=True)
class Wanted:
    """Pairs to score.

    `param` is the field of the documents, `cut` says how long pairs are shortened, `priority` is as in `Asked`.
    """

    pairs: Sequence[Pair]
    param: str
    model: str | None
    instruct: str | None = None
    cut: Cut = WHOLE
    priority: int = 0
    activation: Activation | None = None  # of scores; None: what the model's files declare
    repeated: Sequence[str] = ()  # texts that the answer repeats


@dataclass(frozen=True)
class Scores:
    """A score for each pair, in order, and the number of tokens in all their prompts."""

    values: list[float]
    prompt_tokens: int


async def scores(context: ApiContext, request: Request, wanted: Wanted) -> Scores:
    """Return the scores of all pairs. Raises `ApiError` for invalid pairs, and the errors of `ends_of`."""
    check_model(context, wanted.model)
    by = scorer(context.purpose)
    if isinstance(by, Judge):
        return await _of_judge(context, request, wanted, by)
    return await _of_encoder(context, request, wanted, by)


async def _of_encoder(context: ApiContext, request: Request, wanted: Wanted, classifier: Classifies) -> Scores:
    if wanted.instruct is not None:
        message = "This model reads a query and a document, and no instruction. Leave 'instruct' out."
        raise bad_request(message, "instruct", "instruct_unsupported")
    read = partial(
        items_asked,
        context,
        wanted.pairs,
        wanted.cut,
        param=wanted.param,
        model=wanted.model,
        priority=wanted.priority,
    )
    ends = await _ends(context, request, wanted, read)
    found = activated(list(ends), wanted.activation or classifier.activation)
    return Scores(found[:, 0].tolist(), ends.prompt_tokens)


async def _of_judge(context: ApiContext, request: Request, wanted: Wanted, judge: Judge) -> Scores:
    async def read() -> Asked:
        return Asked(
            Texts(await _prompts(context, wanted), param=wanted.param),
            Sampling(temperature=0.0, repetition_penalty=1.0),
            model=wanted.model,
            max_tokens=1,
            token_ids_logprob=(judge.no, judge.yes),
            priority=wanted.priority,
        )

    ends = await _ends(context, request, wanted, read)
    # The probability of yes, if the answer is yes or no, is the sigmoid of the difference.
    found = [yes - no for no, yes in (np.frombuffer(each, "<f8").tolist() for each in ends)]
    return Scores(found if wanted.activation == "none" else list(map(sigmoid, found)), ends.prompt_tokens)


async def _ends(context: ApiContext, request: Request, wanted: Wanted, read: Callable[[], Awaitable[Asked]]) -> Ends:
    inputs = Inputs(len(wanted.pairs), wanted.param, read)
    size = AnswerSize.of_scores(texts=wanted.repeated)
    return await ends_of(context, request, inputs, record_of(request).request_id, size)


async def _prompts(context: ApiContext, wanted: Wanted) -> list[list[int]]:
    for pair in wanted.pairs:
        check_text_length(context, wanted.cut.whole_characters(pair), wanted.param)
    with context.text.admit(sum(len(text) for pair in wanted.pairs for text in pair)) as turns:
        before, after = [await _tokens(context, turns, text, wanted.param) for text in (BEFORE, AFTER)]
        room = context.limits.context_length - 1 - len(before) - len(after)  # the answer is one token
        middles = [await _middle(context, turns, wanted, pair) for pair in wanted.pairs]
    return [before + (middle[:room] if wanted.cut.context else middle) + after for middle in middles]


async def _middle(context: ApiContext, turns: Turns, wanted: Wanted, pair: Pair) -> list[int]:
    asked, cut = question(wanted.instruct, pair[0]), wanted.cut
    if cut == WHOLE:
        return await _tokens(context, turns, asked + pair[1], wanted.param)
    # More tokens than fit are enough, however long the texts are.
    first = partial(turns.encode_part, at_least=context.limits.context_length, of_end=False, add_special_tokens=False)
    tokens = await first(asked + pair[1])
    if cut.second is None or len(tokens) <= cut.second:
        return tokens
    return tokens[: len(await first(asked)) + cut.second]


async def _tokens(context: ApiContext, turns: Turns, text: str, param: str) -> list[int]:
    return await encode(context, turns, text, param, add_special_tokens=False, too_long=_TOO_LONG)
