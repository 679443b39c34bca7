"""Requests to several model processes at once: a slow model process does not delay the others."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
import msgspec
from fastapi.responses import Response
from numaserve.server.common.patience import patiently
from numaserve.server.gateway.passing import Headers, requested
from numaserve.server.http.errors import ApiError, not_ready
from numaserve.server.surfaces.streaming import json_response
from starlette.types import Scope

ASK_S = 10.0  # timeout of a model process, which answers these requests within milliseconds unless it hangs
_NOT_HERE = frozenset({404, 503})


@dataclass(frozen=True)
class Question:
    """A request with its whole body, and the headers `told` that the gateway adds to the client's."""

    scope: Scope
    told: Headers
    body: bytes = b""


Ask = Callable[[Iterable[aiohttp.ClientSession], Question], Coroutine[object, object, Response]]


async def first_that_knows(sessions: Iterable[aiohttp.ClientSession], question: Question) -> Response:
    """Return the first answer of a model process that knows the object in the path. Raises `ApiError` if none does."""
    missing, silent = None, False
    async with _asked(sessions, question) as asked:
        for each in asyncio.as_completed(asked):
            answer = await each
            if answer is None or answer.status_code == 503:
                silent = True
            elif answer.status_code != 404:
                return answer
            else:
                missing = answer
    if silent:
        raise not_ready("A model process that may have the requested object did not answer. Retry later.")
    if missing is None:
        raise ApiError(
            404,
            "No loaded model has an object with this id. Check the id, or load the model that created the object.",
            code="not_found",
            refusal=None,
        )
    return missing


async def gathered(sessions: Iterable[aiohttp.ClientSession], question: Question, name: str) -> Response:
    """Return the lists called `name` of all answers as one list, in the order of `sessions`.

    Model processes that do not answer are left out.
    """
    items: list[msgspec.Raw] = []
    for answer in await answers(sessions, question):
        with contextlib.suppress(msgspec.DecodeError, KeyError):
            items += msgspec.json.decode(answer.body, type=dict[str, list[msgspec.Raw]])[name]
    return json_response({name: items})


async def summed(sessions: Iterable[aiohttp.ClientSession], question: Question, name: str) -> Response:
    """Return the sum of the numbers called `name` in all answers, or the first refusal, which concerns the request."""
    total = 0
    for answer in await answers(sessions, question):
        if answer.status_code in _NOT_HERE:
            continue
        if answer.status_code != 200:
            return answer
        total += msgspec.json.decode(answer.body, type=dict[str, int])[name]
    return json_response({name: total})


async def answers(sessions: Iterable[aiohttp.ClientSession], question: Question) -> list[Response]:
    """Return the answers in the order of `sessions`, without model processes that do not answer."""
    async with _asked(sessions, question) as asked:
        return [answer for answer in await asyncio.gather(*asked) if answer is not None]


@asynccontextmanager
async def _asked(
    sessions: Iterable[aiohttp.ClientSession], question: Question
) -> AsyncIterator[list[asyncio.Task[Response | None]]]:
    """Send the question to all sessions, and cancel unanswered requests at the end."""
    tasks = [asyncio.ensure_future(_ask(session, question)) for session in sessions]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _ask(session: aiohttp.ClientSession, question: Question) -> Response | None:
    """Return the whole answer; None if the model process has ended or did not answer in time."""
    if session.closed:
        return None
    with contextlib.suppress(aiohttp.ClientError, ConnectionError, TimeoutError):
        async with (
            patiently(ASK_S),
            requested(session, question.scope, question.body, question.told) as answer,
        ):
            return Response(await answer.read(), answer.status, media_type=answer.content_type)
    return None
