"""The client that sends one request and times its stream."""

import time
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec
from numaserve.server.loadtest.options import Traffic
from numaserve.server.loadtest.stream import StreamError, StreamReader
from numaserve.server.loadtest.target import Target, describe, message_of
from numaserve.server.loadtest.workload.requests import BenchRequest, Outcome, Prompt


@dataclass(frozen=True)
class Dialect:
    """The features of the best request that a server understands."""

    chat: bool = False
    token_ids: bool = True
    usage: bool = True
    ignore_eos: bool = True

    def body(self, model: str, prompt: Prompt, output_tokens: int) -> dict[str, Any]:
        """Return the body of a streamed request."""
        body: dict[str, Any] = {"model": model, "max_tokens": output_tokens, "temperature": 0.0, "stream": True}
        if self.chat:
            body["messages"] = [{"role": "user", "content": prompt}]
        else:
            body["prompt"] = prompt
        if self.usage:
            body["stream_options"] = {"include_usage": True}
        if self.ignore_eos:
            body["ignore_eos"] = True
        return body

    @property
    def path(self) -> str:
        """The path of the endpoint, relative to the API's URL."""
        return "/chat/completions" if self.chat else "/completions"


@dataclass(frozen=True)
class Client:
    """The client of one model on one server."""

    target: Target
    model: str
    dialect: Dialect
    traffic: Traffic

    async def complete(self, request: BenchRequest) -> Outcome:
        """Request one completion. The outcome reports errors; there are no retries."""
        body = self.dialect.body(self.model, request.prompt, request.output_tokens) | self.traffic.extra_body
        data = msgspec.json.encode(body)
        outcome = Outcome(request.input_tokens, asked_tokens=request.output_tokens)
        try:
            await self._stream(data, outcome)
        except StreamError as error:
            outcome.error = str(error)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            outcome.error = describe(error)
        return outcome

    async def _stream(self, data: bytes, outcome: Outcome) -> None:
        reader = StreamReader(outcome)
        begin = time.perf_counter()
        async with self.target.session.post(
            self.target.api + self.dialect.path, data=data, allow_redirects=False
        ) as response:
            outcome.status = response.status
            if response.status != 200:
                raise StreamError(f"HTTP {response.status}: {message_of(await response.read())}")
            async for content in response.content.iter_any():
                reader.feed(content, time.perf_counter() - begin)
        reader.close()
