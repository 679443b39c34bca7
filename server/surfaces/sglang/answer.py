"""Answers of POST /generate, in SGLang's format."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress

from fastapi import Request
from fastapi.responses import Response
from numaserve.server.engine.types import Aborted
from numaserve.server.generation.answer.reading import Chunk
from numaserve.server.generation.asked import Prompt
from numaserve.server.generation.context import ApiContext
from numaserve.server.generation.generation import Generation
from numaserve.server.http.access_log import record_of
from numaserve.server.surfaces.openai.frame import EVENTS
from numaserve.server.surfaces.openai.logprobs import TokenNames
from numaserve.server.surfaces.sglang.generate_schema import SGLangGenerateRequest
from numaserve.server.surfaces.sglang.growing import GrowingList, GrowingText
from numaserve.server.surfaces.sglang.logprobs import Entries
from numaserve.server.surfaces.streaming import json_response

Finish = dict[str, object]
_ABORTED: Finish = {"type": "abort", "message": "The request was aborted."}


class _Output:
    """One sequence of the answer so far."""

    def __init__(self, rid: str, prompt: Prompt, body: SGLangGenerateRequest, entries: Entries, began: float) -> None:
        self.finish: Finish | None = None
        self._rid = rid
        self._prompt = prompt
        self._body = body
        self._entries = entries
        self._began = began
        self._begun = False
        self._tokens = self._cached = 0
        self._latency: float | None = None
        self._text, self._ids = GrowingText(), GrowingList()
        self._logprobs = {name: GrowingList() for name in self._lists(body)}

    @staticmethod
    def _lists(body: SGLangGenerateRequest) -> list[str]:
        if not body.return_logprob:
            return []
        beside = ["top"] if body.top_logprobs_num else []
        named = ["output_token_ids_logprobs"] if body.token_ids_logprob else []
        return [f"{side}_{what}_logprobs" for what in ("token", *beside) for side in ("input", "output")] + named

    async def add(self, chunk: Chunk) -> None:
        """Add the next chunk."""
        begins, self._begun = not self._begun, True
        if begins and self._body.scores_prompt:
            # In a thread: thousands of tokens, each with alternatives, take a second.
            await asyncio.to_thread(self._add_prompt, chunk)
        self._tokens += len(chunk.token_ids)
        self._cached = max(self._cached, chunk.of_engine.cached_tokens)
        self._text.add(chunk.text)
        self._ids.add(chunk.token_ids)
        self._add("output_token_logprobs", self._entries.chosen(chunk.logprobs))
        self._add("output_top_logprobs", self._entries.likeliest(chunk.logprobs))
        if chunk.token_ids:
            named = self._entries.named(self._body.token_ids_logprob or (), chunk.of_engine.token_logprobs)
            self._add("output_token_ids_logprobs", named)
        if chunk.finish_reason is not None:
            self.end(_finish(chunk, self._tokens))

    def end(self, finish: Finish) -> None:
        """Record the reason and the time of the end."""
        self.finish = finish
        self._latency = time.perf_counter() - self._began

    def json(self) -> dict[str, object]:
        """Return the sequence so far as an object."""
        info: dict[str, object] = {
            "id": self._rid,
            "finish_reason": self.finish,
            "prompt_tokens": len(self._prompt.tokens),
            "completion_tokens": self._tokens,
            "cached_tokens": self._cached,
            **{name: entries.json() for name, entries in self._logprobs.items()},
        }
        if self._latency is not None:
            info["e2e_latency"] = self._latency
        return {"text": self._text.json(), "output_ids": self._ids.json(), "meta_info": info}

    def _add(self, name: str, items: Sequence[object]) -> None:
        if name in self._logprobs:
            self._logprobs[name].add(items)

    def _add_prompt(self, chunk: Chunk) -> None:
        """Add the log-probabilities of the prompt's tokens; as in SGLang, the first requested token has none."""
        start = self._body.logprob_start_len or 0
        first, rest = self._prompt.tokens[start : start + 1], chunk.prompt_logprobs[start:]
        self._add("input_token_logprobs", [self._entries.entry(token, None) for token in first])
        self._add("input_token_logprobs", self._entries.chosen(rest))
        self._add("input_top_logprobs", [None for _ in first])
        self._add("input_top_logprobs", self._entries.likeliest(rest))


def _finish(chunk: Chunk, tokens: int) -> Finish:
    if chunk.finish_reason == "length":
        return {"type": "length", "length": tokens}
    return {"type": "stop", "matched": chunk.stop_reason}


class GenerateAnswer:
    """Writes the chunks of a generation in SGLang's format. Output p * n + i is answer i to prompt p."""

    framing = EVENTS

    def __init__(
        self, context: ApiContext, body: SGLangGenerateRequest, request: Request, rid: str, prompts: Sequence[Prompt]
    ) -> None:
        self._single = body.is_single
        names = TokenNames(context.tokenizer) if body.return_text_in_logprobs else None
        of_each = [prompt for prompt in prompts for _ in range(body.parameters.n or 1)]
        began = record_of(request).started
        self._outputs = [
            _Output(rid if self._single else f"{rid}-{index}", prompt, body, Entries(names), began)
            for index, prompt in enumerate(of_each)
        ]

    async def complete(self, generation: Generation) -> Response:
        """Return the whole answer at once."""
        with suppress(Aborted):
            async with aclosing(generation.chunks()) as chunks:
                async for chunk in chunks:
                    await self._outputs[chunk.index].add(chunk)
        self._end_all()
        answers = [output.json() for output in self._outputs]
        return json_response(answers[0] if self._single else answers)

    async def stream(self, generation: Generation) -> AsyncGenerator[object, None]:
        """Yield, with each chunk, the whole text of its sequence so far."""
        with suppress(Aborted):
            async with aclosing(generation.chunks()) as chunks:
                async for chunk in chunks:
                    await self._outputs[chunk.index].add(chunk)
                    yield self._event(chunk.index)
        for index in self._end_all():
            yield self._event(index)

    def _event(self, index: int) -> dict[str, object]:
        event = self._outputs[index].json()
        return event if self._single else {"index": index, **event}

    def _end_all(self) -> list[int]:
        """End the aborted outputs, and return their indices."""
        unfinished = [index for index, output in enumerate(self._outputs) if output.finish is None]
        for index in unfinished:
            self._outputs[index].end(_ABORTED)
        return unfinished
