"""Chats about images over HTTP, and the probabilities of their answers."""

from collections.abc import Sequence
from typing import Any

import httpx
import pytest
from numaserve.workers.interface.protocol import PAGE_SIZE

from tests.support.real_server import PATIENCE_S, RealServer

TOP = 5
TEXT = {"type": "text", "text": "hi"}


def ask(server: RealServer, *turns: dict[str, Any], tokens: int = 1) -> httpx.Response:
    body = {"messages": turns, "max_tokens": tokens, "temperature": 0, "logprobs": True, "top_logprobs": TOP}
    return httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=PATIENCE_S)


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def likeliest(answer: httpx.Response) -> list[float]:
    """The likeliest log-probabilities of an answer of one token."""
    assert answer.status_code == 200, answer.text
    (entry,) = answer.json()["choices"][0]["logprobs"]["content"]
    return [each["logprob"] for each in entry["top_logprobs"]]


def assert_answers_twice(
    server: RealServer, parts: Sequence[Any], tokens: int, expected: Sequence[float], tolerance: float
) -> None:
    """Ask about the same images twice. Both answers have the `expected` log-probabilities after a prompt of `tokens`,
    and the second one finds the prompt's whole pages."""
    first, second = (ask(server, user(*parts)) for _ in range(2))
    assert likeliest(first) == pytest.approx(expected, abs=tolerance)
    assert likeliest(second) == likeliest(first)
    usages = [answer.json()["usage"] for answer in (first, second)]
    assert [usage["prompt_tokens"] for usage in usages] == [tokens, tokens]
    cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages]
    assert [count > 0 for count in cached] == [False, tokens > PAGE_SIZE]


def assert_second_turn_finds(server: RealServer, *parts: Any) -> None:
    """Ask about `parts`, among them an image, and go on twice. The second turn finds a page of the prompt or more, and
    both have the same log-probabilities."""
    first = ask(server, user(*parts), tokens=4)
    answer = first.json()["choices"][0]["message"]["content"] or "a"
    turns = user(*parts), {"role": "assistant", "content": answer}, user(TEXT)
    second, again = (ask(server, *turns) for _ in range(2))
    assert second.json()["usage"]["prompt_tokens_details"]["cached_tokens"] >= PAGE_SIZE
    assert likeliest(second) == likeliest(again)
