"""POST /v1/completions."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import Response
from numaserve.server.generation.answer.reading import Chunk
from numaserve.server.generation.asked import Prompt
from numaserve.server.generation.context import ApiContext
from numaserve.server.generation.generation import Generation
from numaserve.server.generation.prompts import hidden_tokens
from numaserve.server.generation.start import start
from numaserve.server.http.body.route import body_route
from numaserve.server.surfaces.openai.chunk_models import CompletionChunk
from numaserve.server.surfaces.openai.completion_schema import CompletionRequest
from numaserve.server.surfaces.openai.frame import DONE, EVENTS, Frame, StreamUsage, usage_body
from numaserve.server.surfaces.openai.logprobs import (
    CompletionLogprobs,
    TokenNames,
    joined,
    only_likeliest,
    prompt_entries,
)
from numaserve.server.surfaces.openai.token_ids import TokenIds
from numaserve.server.surfaces.openapi import BODY_ERRORS, event_stream
from numaserve.server.surfaces.response_models import Completion, Error
from numaserve.server.surfaces.streaming import json_response, respond


def completions_router(context: ApiContext) -> APIRouter:
    """Return the route of this module."""
    router = APIRouter(tags=["generation"], route_class=body_route(context.bodies))
    streamed = event_stream(CompletionChunk, Error, end=DONE)

    @router.post("/v1/completions", response_model=Completion, responses={200: streamed, **BODY_ERRORS})
    async def create_completion(body: CompletionRequest, request: Request) -> Response:
        """Continue a text, in OpenAI's format, with or without streaming."""
        answer = _CompletionAnswer(context, body)
        generation = await start(context, request, body.asked(), answer.id)
        answer.begin(generation.prompts)
        return await respond(
            request, answer, generation, stream=body.stream is True, ping_seconds=context.sse_ping_seconds
        )

    return router


@dataclass
class _Choice:
    """One sequence of the answer so far."""

    prompt: Prompt
    logprobs: CompletionLogprobs
    begun: bool = False
    sent: bool = False
    scored: dict[str, object] = field(default_factory=dict)  # the prompt's log-probabilities, if requested
    texts: list[str] = field(default_factory=list)
    parts: list[dict[str, list[object]]] = field(default_factory=list)
    finish_reason: str | None = None


class _CompletionAnswer:
    """Writes the chunks of a generation in the format of text completions. Choice p * n + i is sample i of prompt p."""

    framing = EVENTS

    def __init__(self, context: ApiContext, body: CompletionRequest) -> None:
        self._frame = Frame.new(context, body, "cmpl", "text_completion")
        self._names = TokenNames(context.tokenizer, as_ids=body.return_tokens_as_token_ids is True)
        self._hidden = hidden_tokens(context, skip_special_tokens=body.skip_special_tokens is not False)
        self._choices: list[_Choice] = []
        self._echo = body.echo is True
        self._with_logprobs = body.logprobs is not None
        self._tops = body.logprobs or 0
        self._ids = TokenIds(wanted=body.return_token_ids is True)
        self._body = body

    @property
    def id(self) -> str:
        """The answer's id."""
        return self._frame.id

    def begin(self, prompts: Sequence[Prompt]) -> None:
        """Take the prompts, which are known once they are admitted."""
        self._choices = [
            _Choice(prompt, CompletionLogprobs(self._names, self._hidden))
            for prompt in prompts
            for _ in range(self._body.n or 1)
        ]

    async def complete(self, generation: Generation) -> Response:
        """Return the whole answer at once."""
        async with aclosing(generation.chunks()) as chunks:
            async for chunk in chunks:
                choice = self._choices[chunk.index]
                text, logprobs = await self._contents(choice, chunk)
                choice.texts.append(text)
                self._ids.add(chunk.index, chunk.token_ids)
                choice.parts += [] if logprobs is None else [logprobs]
                choice.finish_reason = chunk.finish_reason or choice.finish_reason
        choices = [
            self._choice(
                index, "".join(choice.texts), joined(choice.parts) if choice.parts else None, choice.finish_reason
            )
            | self._ids.take(index)
            | self._ids.of_prompt(choice.prompt.tokens)
            | choice.scored
            for index, choice in enumerate(self._choices)
        ]
        return json_response(self._frame.wrap(choices, usage=usage_body(generation.usage())))

    async def stream(self, generation: Generation) -> AsyncGenerator[object, None]:
        """Yield the chunks as they come; finally the usage."""
        usage = StreamUsage(self._body, generation)
        async with aclosing(generation.chunks()) as chunks:
            async for chunk in chunks:
                index = chunk.index
                begins = not self._choices[index].sent
                text, logprobs = await self._contents(self._choices[index], chunk)
                self._ids.add(index, chunk.token_ids)
                if text or chunk.finish_reason is not None or (logprobs is not None and logprobs["tokens"]):
                    choice = self._choice(index, text, logprobs, chunk.finish_reason) | self._ids.take(index)
                    if begins:
                        self._choices[index].sent = True
                        choice |= self._ids.of_prompt(self._choices[index].prompt.tokens)
                    yield self._frame.wrap([choice], **usage.of_chunk(index))
        if usage.wanted:
            yield self._frame.wrap([], usage=usage_body(generation.usage()))

    async def _contents(self, choice: _Choice, chunk: Chunk) -> tuple[str, dict[str, list[object]] | None]:
        """Return the text and the log-probabilities of a chunk. The first chunk begins with the echoed prompt."""
        text = chunk.text
        logprobs: list[dict[str, list[object]]] = []
        if self._echo and not choice.begun:
            text = choice.prompt.text + text
            if self._with_logprobs:
                # In a thread: thousands of tokens, each with alternatives, take a second.
                rest = only_likeliest(chunk.prompt_logprobs, self._tops)
                columns = partial(choice.logprobs.prompt, choice.prompt.tokens[0], rest)
                logprobs.append(await asyncio.to_thread(columns, choice.prompt.hidden))
        if self._body.prompt_logprobs is not None and not choice.begun:
            entries = partial(prompt_entries, self._names, chunk.prompt_logprobs, self._body.prompt_logprobs)
            choice.scored = {"prompt_logprobs": await asyncio.to_thread(entries)}
        choice.begun = True
        if not self._with_logprobs:
            return text, None
        return text, joined([*logprobs, choice.logprobs.output(only_likeliest(chunk.logprobs, self._tops))])

    @staticmethod
    def _choice(
        index: int, text: str, logprobs: dict[str, list[object]] | None, finish_reason: str | None
    ) -> dict[str, object]:
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}
