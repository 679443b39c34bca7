"""The requests of a run: every kind of traffic, drawn from a seed."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.support.chat_model import MODEL
from tests.support.demo import ALICE

Body = dict[str, Any]

_WORDS = ALICE.split()
_SHARED = " ".join(_WORDS[:60])  # some hundreds of tokens
_LONG_WORDS = (150, 300)
_SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "size": {"type": "integer", "minimum": 0, "maximum": 9999},
        "kind": {"enum": ["cat", "hatter", "queen"]},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 4},
    },
    "required": ["name", "size", "kind", "tags"],
    "additionalProperties": False,
}
_PLACES = {
    "type": "object",
    "properties": {"place": {"type": "string", "maxLength": 10}, "days": {"type": "integer"}},
    "required": ["place"],
}


@dataclass(frozen=True)
class Request:
    """What one client asks. `leaves_after`: events of a stream after which it goes away, or None if it stays."""

    kind: str
    path: str
    body: Body
    leaves_after: int | None = None

    @property
    def streams(self) -> bool:
        """Whether the answer comes in events."""
        return bool(self.body.get("stream"))

    @property
    def event_mark(self) -> bytes:
        """What is in each event of a stream once."""
        return b"\n" if self.path == "/api/chat" else b"data:"


class Draw:
    """Draws parts of requests."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def text(self, least: int = 3, most: int = 30) -> str:
        """Some words of a real text."""
        begin = self.random.randrange(len(_WORDS))
        count = self.random.randint(least, most)
        return " ".join((_WORDS * 3)[begin : begin + count])

    def count(self, least: int = 30, most: int = 160) -> int:
        """How many tokens are wanted."""
        return self.random.randint(least, most)

    def sampling(self) -> Body:
        """Greedy, or sampled with a seed, with or without penalties; with log-probabilities."""
        if self.random.random() < 0.3:
            return {"temperature": 0}
        found: Body = {"temperature": self.random.choice((0.7, 1.0, 1.3)), "seed": self.random.randrange(2**31)}
        return found | self.random.choice(
            (
                {},
                {"top_p": 0.9, "top_k": 50},
                {"min_p": 0.02, "presence_penalty": 0.5, "frequency_penalty": 0.7},
                {"repetition_penalty": 1.3},
            )
        )

    def schema(self) -> Body:
        """A schema that no other request has: none is compiled already."""
        return _SCHEMA | {"title": f"{self.random.randrange(2**31)}"}


def _streamed(draw: Draw) -> Request:
    body = {"prompt": draw.text(), "max_tokens": draw.count(60, 240), "ignore_eos": True, "logprobs": 3}
    return _completion("stream", body | _STREAM | {"return_token_ids": True} | draw.sampling())


def _left(draw: Draw) -> Request:
    body = {"prompt": draw.text(), "max_tokens": 240, "ignore_eos": True, **_STREAM} | draw.sampling()
    return Request("cancel", "/v1/completions", body, leaves_after=draw.random.randint(1, 60))


def _several(draw: Draw) -> Request:
    stream = _STREAM if draw.random.random() < 0.5 else {}
    body = {"prompt": draw.text(), "n": draw.random.randint(2, 4), "max_tokens": draw.count(), "logprobs": 1}
    return _completion("n > 1", body | stream | draw.sampling())


def _echoed(draw: Draw) -> Request:
    body = {"prompt": draw.text(20, 80), "echo": True, "logprobs": 2, "max_tokens": draw.random.choice((0, 20, 80))}
    return _completion("echo", body | draw.sampling())


def _prompt_logprobs(draw: Draw) -> Request:
    body = {"prompt": draw.text(20, 120), "prompt_logprobs": 3, "max_tokens": draw.count()}
    return _completion("prompt logprobs", body | draw.sampling())


def _stopped(draw: Draw) -> Request:
    body = {"prompt": draw.text(), "stop": ["th", "qu", " a"], "min_tokens": draw.count(10, 60), "max_tokens": 200}
    return _completion("stop strings", body | _STREAM | draw.sampling())


def _long(draw: Draw) -> Request:
    body = {"prompt": draw.text(*_LONG_WORDS), "max_tokens": draw.count(5, 60), "logprobs": 0}
    return _completion("long prompt", body | _STREAM | draw.sampling())


def _shared(draw: Draw) -> Request:
    body = {"prompt": f"{_SHARED} {draw.text()}", "max_tokens": draw.count(), "logprobs": 2, "ignore_eos": True}
    return _completion("shared prefix", body | _STREAM | draw.sampling())


def _chat(draw: Draw) -> Request:
    stream = _STREAM if draw.random.random() < 0.7 else {"n": 2}
    body = {"messages": _said(draw), "max_tokens": draw.count(), "logprobs": True, "top_logprobs": 2}
    return Request("chat", "/v1/chat/completions", body | stream | draw.sampling())


def _grammar(draw: Draw) -> Request:
    stream = _STREAM if draw.random.random() < 0.5 else {}
    form = {"type": "json_schema", "json_schema": {"name": "found", "schema": draw.schema()}}
    body = {"messages": _said(draw), "max_tokens": 150, "response_format": form, "logprobs": True}
    return Request("grammar", "/v1/chat/completions", body | stream | draw.sampling())


def _regex(draw: Draw) -> Request:
    pattern = rf"({draw.random.randrange(2**31)}|[a-z]{{3,9}})( [a-z]+,){{5,12}} end\."
    return _completion("grammar", {"prompt": draw.text(), "regex": pattern, "max_tokens": 200} | draw.sampling())


def _tools(draw: Draw) -> Request:
    name = f"weather_{draw.random.randrange(2**31)}"
    tool = {"type": "function", "function": {"name": name, "description": "weather", "parameters": _PLACES}}
    body = {"messages": _said(draw), "tools": [tool], "tool_choice": "required", "max_tokens": 160}
    stream = _STREAM if draw.random.random() < 0.7 else {}
    return Request("tools", "/v1/chat/completions", body | stream | draw.sampling())


def _messages(draw: Draw) -> Request:
    """Anthropic's have no seed: only greedy ones are the same each time."""
    body = {"messages": _said(draw), "max_tokens": draw.count(), "temperature": 0, "stream": True}
    tool = {"name": f"weather_{draw.random.randrange(2**31)}", "description": "weather", "input_schema": _PLACES}
    called = {"tools": [tool], "tool_choice": {"type": "any"}} if draw.random.random() < 0.3 else {}
    return Request("messages", "/v1/messages", body | called)


def _responses(draw: Draw) -> Request:
    """OpenAI's newer ones have none either. Kept, they would fill the store: memory would not show what leaks."""
    body = {"input": _said(draw), "max_output_tokens": draw.count(), "temperature": 0, "stream": True, "store": False}
    tool = {"type": "function", "name": f"weather_{draw.random.randrange(2**31)}", "parameters": _PLACES}
    called = {"tools": [tool], "tool_choice": "required"}
    told = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    return Request("responses", "/v1/responses", body | (called if draw.random.random() < 0.3 else told))


def _ollama(draw: Draw) -> Request:
    options = {"num_predict": draw.count(), "temperature": 1.0, "seed": draw.random.randrange(2**31)}
    body = {"model": MODEL, "messages": _said(draw), "options": options, "stream": True}
    more = {"format": draw.schema()} if draw.random.random() < 0.3 else {"logprobs": True, "top_logprobs": 2}
    return Request("ollama", "/api/chat", body | more)


_STREAM: Body = {"stream": True, "stream_options": {"include_usage": True}}
# Streams are most of it.
_KINDS: tuple[tuple[int, Callable[[Draw], Request]], ...] = (
    (8, _streamed),
    (2, _left),
    (2, _several),
    (1, _echoed),
    (1, _prompt_logprobs),
    (2, _stopped),
    (2, _long),
    (3, _shared),
    (3, _chat),
    (2, _grammar),
    (1, _regex),
    (2, _tools),
    (3, _messages),
    (3, _responses),
    (3, _ollama),
)


def draw_embeddings(seed: int, count: int) -> list[Request]:
    """So many requests for embeddings, the same for the same seed."""
    draw = Draw(seed)
    bodies = [{"input": [draw.text(3, 200) for _ in range(draw.random.randint(1, 4))]} for _ in range(count)]
    form = {"encoding_format": "base64"}
    return [Request("embeddings", "/v1/embeddings", body | form) for body in bodies]


def _completion(kind: str, body: Body) -> Request:
    return Request(kind, "/v1/completions", body)


def _said(draw: Draw) -> list[Body]:
    return [{"role": "user", "content": draw.text()}]


def draw_requests(seed: int, count: int) -> list[Request]:
    """So many requests, the same for the same seed; every kind is among the first."""
    draw = Draw(seed)
    makers = [maker for _, maker in _KINDS]
    weights = [weight for weight, _ in _KINDS]
    chosen = (makers + draw.random.choices(makers, weights, k=max(0, count - len(makers))))[:count]
    draw.random.shuffle(chosen)
    return [maker(draw) for maker in chosen]
