"""POST /v1/completions."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import Response
from numaserve.server.api.access_log import record_of
from numaserve.server.api.answers import Frame, StreamUsage, check_servable, check_text_length, encode_prompt
from numaserve.server.api.body.route import body_route
from numaserve.server.api.completion_schema import DEFAULT_MAX_TOKENS, CompletionRequest
from numaserve.server.api.context import ApiContext
from numaserve.server.api.disconnect import until_disconnect
from numaserve.server.api.errors import bad_request
from numaserve.server.api.generation import Generation
from numaserve.server.api.logprobs import CompletionLogprobs, TokenNames, joined
from numaserve.server.api.openapi import BODY_ERRORS
from numaserve.server.api.response_models import EVENT_STREAM, Completion
from numaserve.server.api.sampling import Wanted, check_token_ids, generation_requests, output_limit
from numaserve.server.api.streaming import json_response, respond
from numaserve.server.engine.types import GenerationChunk, GenerationRequest
from numaserve.server.text.work import Turns


@dataclass(frozen=True)
class _Prompt:
    tokens: list[int]
    text: str  # the prompt as echo repeats it
    hidden: frozenset[int]  # tokens that are not in `text`


def completions_router(context: ApiContext) -> APIRouter:
    """The route of this file."""
    router = APIRouter(tags=["generation"], route_class=body_route(context.bodies))

    @router.post("/v1/completions", response_model=Completion, responses={200: EVENT_STREAM, **BODY_ERRORS})
    async def create_completion(body: CompletionRequest, request: Request) -> Response:
        """A text, continued; OpenAI's shapes, streaming and not."""
        check_servable(context, body.model)
        record = record_of(request)
        sequences = len(body.prompt) * (body.n or 1)
        if sequences > context.limits.max_sequences:
            message = f"{sequences} sequences are asked for at once; at most {context.limits.max_sequences} are served."
            raise bad_request(message, "prompt", "too_many_sequences")
        if context.log_prompts:
            record.prompt = body.prompt
        prompts = await until_disconnect(request, _prompts(context, body))
        answer = _CompletionAnswer(context, body, prompts)
        requests = [_requests(context, body, prompt.tokens, f"{answer.id}-{i}") for i, prompt in enumerate(prompts)]
        generation = Generation.admit(context.engine, requests, record, drop_output=body.max_tokens == 0)
        return await respond(
            request, answer, generation, stream=body.stream is True, ping_seconds=context.sse_ping_seconds
        )

    return router


async def _prompts(context: ApiContext, body: CompletionRequest) -> list[_Prompt]:
    for given in body.prompt:
        if isinstance(given, str):
            check_text_length(context, len(given), "prompt")
        else:
            output_limit(len(given), None, None, context.limits.context_length, "prompt")
    with context.text.admit(sum(map(len, body.prompt))) as turns:
        prompts = [await _prompt(context, body, given, turns) for given in body.prompt]
    if not all(prompt.tokens for prompt in prompts):
        raise bad_request(
            "A prompt is empty, and this model has no token that starts a text.", "prompt", "empty_prompt"
        )
    return prompts


async def _prompt(context: ApiContext, body: CompletionRequest, given: str | list[int], turns: Turns) -> _Prompt:
    if isinstance(given, str):
        bos = context.tokenizer.bos_token_id
        hidden = frozenset[int]() if bos is None else frozenset((bos,))
        return _Prompt(await encode_prompt(context, turns, given, "prompt"), given, hidden)
    await turns.run(partial(check_token_ids, given, context.vocab_size, "prompt"))
    skip = body.skip_special_tokens is not False
    text = await turns.decode(given, skip_special_tokens=skip) if body.echo else ""
    return _Prompt(given, text, _hidden(context, body))


def _hidden(context: ApiContext, body: CompletionRequest) -> frozenset[int]:
    return frozenset() if body.skip_special_tokens is False else context.tokenizer.special_token_ids


def _requests(
    context: ApiContext, body: CompletionRequest, prompt: list[int], request_id: str
) -> list[GenerationRequest]:
    limit = output_limit(len(prompt), body.output_limit, DEFAULT_MAX_TOKENS, context.limits.context_length, "prompt")
    with_logprobs = body.logprobs is not None
    wanted = Wanted(limit, -1 if body.logprobs is None else body.logprobs, bool(body.echo) and with_logprobs)
    return generation_requests(context, body, prompt, wanted, request_id)


@dataclass
class _Choice:
    """One sequence of the answer, as far as it has come."""

    prompt: _Prompt
    logprobs: CompletionLogprobs
    begun: bool = False
    texts: list[str] = field(default_factory=list)
    parts: list[dict[str, list[object]]] = field(default_factory=list)
    finish_reason: str | None = None


class _CompletionAnswer:
    """Writes the chunks of a generation in the shape of text completions. Choice p * n + i is sample i of prompt p."""

    def __init__(self, context: ApiContext, body: CompletionRequest, prompts: list[_Prompt]) -> None:
        self._frame = Frame.new(context, "cmpl", "text_completion")
        names, hidden = TokenNames(context.tokenizer), _hidden(context, body)
        self._choices = [
            _Choice(prompt, CompletionLogprobs(names, hidden)) for prompt in prompts for _ in range(body.n or 1)
        ]
        self._echo = body.echo is True
        self._with_logprobs = body.logprobs is not None
        self._body = body

    @property
    def id(self) -> str:
        """The answer's id."""
        return self._frame.id

    async def complete(self, generation: Generation) -> Response:
        """The whole answer at once."""
        async with aclosing(generation.chunks()) as chunks:
            async for chunk in chunks:
                choice = self._choices[chunk.index]
                text, logprobs = await self._contents(choice, chunk)
                choice.texts.append(text)
                choice.parts += [] if logprobs is None else [logprobs]
                choice.finish_reason = chunk.finish_reason or choice.finish_reason
        choices = [
            self._choice(
                index, "".join(choice.texts), joined(choice.parts) if choice.parts else None, choice.finish_reason
            )
            for index, choice in enumerate(self._choices)
        ]
        return json_response(self._frame.wrap(choices, usage=generation.usage()))

    async def stream(self, generation: Generation) -> AsyncGenerator[object, None]:
        """The chunks as they come; at last usage."""
        usage = StreamUsage(self._body, generation)
        async with aclosing(generation.chunks()) as chunks:
            async for chunk in chunks:
                index = chunk.index
                text, logprobs = await self._contents(self._choices[index], chunk)
                if text or chunk.finish_reason is not None or (logprobs is not None and logprobs["tokens"]):
                    choice = self._choice(index, text, logprobs, chunk.finish_reason)
                    yield self._frame.wrap([choice], **usage.of_chunk(index))
        if usage.wanted:
            yield self._frame.wrap([], usage=generation.usage())

    async def _contents(self, choice: _Choice, chunk: GenerationChunk) -> tuple[str, dict[str, list[object]] | None]:
        """Text and logprobs of a chunk. Those of the first chunk begin with the echoed prompt."""
        text = chunk.text
        logprobs: list[dict[str, list[object]]] = []
        if self._echo and not choice.begun:
            text = choice.prompt.text + text
            if self._with_logprobs:
                # A thread does it: thousands of tokens, each with others beside it, take a second.
                columns = partial(choice.logprobs.prompt, choice.prompt.tokens[0], chunk.prompt_logprobs)
                logprobs.append(await asyncio.to_thread(columns, choice.prompt.hidden))
        choice.begun = True
        if not self._with_logprobs:
            return text, None
        return text, joined([*logprobs, choice.logprobs.output(chunk.logprobs)])

    @staticmethod
    def _choice(
        index: int, text: str, logprobs: dict[str, list[object]] | None, finish_reason: str | None
    ) -> dict[str, object]:
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}
