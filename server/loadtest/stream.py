"""The events of a streamed completion, and the arrival times of its tokens."""

from typing import Any

import msgspec
from numaserve.server.loadtest.workload.requests import Outcome

_DONE = b"[DONE]"
_LONGEST_MESSAGE = 300
_BROKEN_OFF = frozenset({"abort", "error"})


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None

    @property
    def has_text(self) -> bool:
        """Return whether the choice has any text."""
        delta = self.delta
        return bool(self.text or (delta and (delta.content or delta.reasoning_content or delta.reasoning)))


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _PromptDetails | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decoder = msgspec.json.Decoder(_Event)


class StreamError(Exception):
    """The error of a stream that reports a failure or is invalid."""


def error_text(answer: Any) -> str:
    """Return the message of a decoded error answer, in OpenAI's format or any other."""
    if isinstance(answer, dict):
        error = answer.get("error", answer)
        answer = error.get("message", error) if isinstance(error, dict) else error
    return " ".join(str(answer).split())[:_LONGEST_MESSAGE]


class StreamReader:
    """The reader that takes the bytes of an answer as they arrive and fills in its `Outcome`.

    A token counts when its text arrives. Events without text, which carry a role, half a character or a hidden token,
    may come anywhere. All events of one read have the same time.
    """

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._rest = b""
        self._last_s: float | None = None
        self._chunks = 0
        self._finished = False

    def feed(self, content: bytes, at_s: float) -> None:
        """Process bytes that arrived `at_s` seconds after the request was sent. Raises `StreamError`."""
        *lines, self._rest = (self._rest + content).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._take(line[len(b"data:") :].strip(), at_s)

    def close(self) -> None:
        """Process the end of the answer. Raises `StreamError` if the generation has not ended."""
        if not self._finished:
            raise StreamError("the stream ended before the generation finished, or the response is not an event stream")
        if not self._outcome.with_usage:
            self._outcome.output_tokens = self._chunks

    def _take(self, payload: bytes, at_s: float) -> None:
        if payload == _DONE:
            return
        try:
            event = _decoder.decode(payload)
        except msgspec.DecodeError as error:
            raise StreamError(f"the stream has an invalid event: {error}") from None
        if event.error is not None:
            raise StreamError(f"the stream ended with an error: {error_text(event.error)}")
        for choice in event.choices:
            self._take_choice(choice, at_s)
        if event.usage is not None:
            self._take_usage(event.usage)

    def _take_choice(self, choice: _Choice, at_s: float) -> None:
        if choice.finish_reason in _BROKEN_OFF:
            raise StreamError(f"the server ended the generation with finish_reason {choice.finish_reason}")
        ends = choice.finish_reason is not None
        if choice.has_text:
            self._chunks += 1
            if self._last_s is not None:
                self._outcome.itls_s.append(at_s - self._last_s)
        if self._last_s is None and (choice.has_text or ends):
            self._outcome.ttft_s = at_s
        if choice.has_text or ends:
            self._outcome.e2e_s = self._last_s = at_s
        self._finished |= ends

    def _take_usage(self, usage: _Usage) -> None:
        details = usage.prompt_tokens_details
        self._outcome.with_usage = True
        self._outcome.input_tokens = usage.prompt_tokens
        self._outcome.output_tokens = usage.completion_tokens
        self._outcome.cached_tokens = (details.cached_tokens if details else None) or 0
