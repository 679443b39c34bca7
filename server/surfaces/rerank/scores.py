"""Scores of pairs of a query and a document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import Request
from numaserve.server.generation.asked import Asked, Texts
from numaserve.server.generation.context import ApiContext
from numaserve.server.generation.judge import AFTER, BEFORE, Judge, probability, question
from numaserve.server.generation.many import ends_of
from numaserve.server.generation.prompts import check_text_length, encode
from numaserve.server.generation.start import check_model, check_ready
from numaserve.server.generation.token_choice import Sampling
from numaserve.server.http.access_log import record_of
from numaserve.server.http.disconnect import until_disconnect
from numaserve.server.http.errors import bad_request
from numaserve.server.text.work import Turns

Pair = tuple[str, str]  # query, document
_TOO_LONG = "a query and its document have more than {} tokens. Shorten the document."


@dataclass(frozen=True)
class Wanted:
    """Pairs to score.

    `param` is the field of the documents, `per_document` the number of tokens after which a document is truncated,
    `priority` as in `Asked`.
    """

    pairs: Sequence[Pair]
    param: str
    model: str | None
    instruct: str | None
    per_document: int | None = None
    priority: int = 0


@dataclass(frozen=True)
class Scores:
    """A probability for each pair, in order, and the number of tokens in all their prompts."""

    values: list[float]
    prompt_tokens: int


async def scores(context: ApiContext, request: Request, wanted: Wanted) -> Scores:
    """Return the scores of all pairs. Raises `ApiError` for invalid pairs, and the errors of `EngineProtocol.admit`."""
    check_model(context, wanted.model)
    judge = context.judge
    if judge is None:
        message = "This model does not score documents. The operator can start the server with '--task score'."
        raise bad_request(message, "model", "task_unsupported")
    check_ready(context)
    prompts = await until_disconnect(request, _prompts(context, wanted))
    ends = await ends_of(context, request, _asked(prompts, wanted, judge), record_of(request).request_id)
    values = [probability(*chunk.token_logprobs[0]) for chunk in ends.chunks]
    return Scores(values, ends.prompt_tokens)


def _asked(prompts: list[list[int]], wanted: Wanted, judge: Judge) -> Asked:
    return Asked(
        Texts(prompts, param=wanted.param),
        Sampling(temperature=0.0, repetition_penalty=1.0),
        model=wanted.model,
        max_tokens=1,
        token_ids_logprob=(judge.no, judge.yes),
        priority=wanted.priority,
    )


async def _prompts(context: ApiContext, wanted: Wanted) -> list[list[int]]:
    for pair in wanted.pairs:
        check_text_length(context, sum(map(len, pair)), wanted.param)
    with context.text.admit(sum(len(text) for pair in wanted.pairs for text in pair)) as turns:
        before, after = [await _tokens(context, turns, text, wanted.param) for text in (BEFORE, AFTER)]
        return [before + await _middle(context, turns, wanted, pair) + after for pair in wanted.pairs]


async def _middle(context: ApiContext, turns: Turns, wanted: Wanted, pair: Pair) -> list[int]:
    asked = question(wanted.instruct, pair[0])
    tokens = await _tokens(context, turns, asked + pair[1], wanted.param)
    if wanted.per_document is None or len(tokens) <= wanted.per_document:
        return tokens
    return tokens[: len(await _tokens(context, turns, asked, wanted.param)) + wanted.per_document]


async def _tokens(context: ApiContext, turns: Turns, text: str, param: str) -> list[int]:
    return await encode(context, turns, text, param, add_special_tokens=False, too_long=_TOO_LONG)
