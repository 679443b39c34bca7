"""The conversation of `numaserve chat` with a server."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec
from numaserve.server.client.remote import RemoteServer

Show = Callable[[str, bool], None]  # a piece of an answer, and whether it is reasoning


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    completion_tokens: int = 0


class _Chunk(msgspec.Struct):
    choices: list[_Choice]
    usage: _Usage | None = None


@dataclass
class Figures:
    """The figures of an answer. Times are of `time.monotonic()`."""

    begun: float
    first: float = 0.0  # time of the first token
    last: float = 0.0
    tokens: int = 0
    ended: str = "stopped"  # the reason for the end

    def __str__(self) -> str:
        if not self.tokens:
            return self.ended
        tokens = f"{self.tokens} token{'' if self.tokens == 1 else 's'}"
        # Without the first token, whose time includes the prompt.
        passed = self.last - self.first
        pace = f", {(self.tokens - 1) / passed:.1f} tokens/s" if self.tokens > 1 and passed > 0 else ""
        return f"{tokens}{pace}, first after {self.first - self.begun:.2f} s, {self.ended}"


class Conversation:
    """The turns so far. `fields` are the fields of each request other than its messages."""

    def __init__(self, remote: RemoteServer, fields: Mapping[str, object], system: str | None) -> None:
        self._remote = remote
        self._fields = fields
        self._system = [] if system is None else [{"role": "system", "content": system}]
        self._turns: list[dict[str, str]] = []

    def reset(self) -> None:
        """Forget all turns."""
        self._turns.clear()

    def ask(self, text: str, show: Show) -> Figures:
        """Ask `text`, and show each piece of the answer as it arrives.

        Raises `OperatorError`, and then leaves the turns unchanged. An interrupt keeps the partial answer and makes the
        server end the request.
        """
        question = {"role": "user", "content": text}
        body = {
            "messages": [*self._system, *self._turns, question],
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            **self._fields,
        }
        figures = Figures(time.monotonic())
        content: list[str] = []
        events = self._remote.events("/v1/chat/completions", body)
        try:
            for event in events:
                _take(msgspec.json.decode(event, type=_Chunk), figures, content, show)
        except KeyboardInterrupt:
            pass
        finally:
            events.close()
        self._turns += [question, {"role": "assistant", "content": "".join(content)}]
        return figures


def _take(chunk: _Chunk, figures: Figures, content: list[str], show: Show) -> None:
    if chunk.usage is not None and chunk.usage.completion_tokens > figures.tokens:
        figures.tokens, figures.last = chunk.usage.completion_tokens, time.monotonic()
        figures.first = figures.first or figures.last
    for choice in chunk.choices:
        if choice.delta.reasoning_content:
            show(choice.delta.reasoning_content, True)
        if choice.delta.content:
            content.append(choice.delta.content)
            show(choice.delta.content, False)
        figures.ended = choice.finish_reason or figures.ended
