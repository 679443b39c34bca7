"""Requests for streams that together reach all that the OpenAPI document says of streams."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from fastapi import FastAPI
from model_bodies import GENERATING
from numaserve.server.answers.reasoning.formats import reasoning_formats
from numaserve.server.answers.tools.formats import tool_formats
from numaserve.server.app.application import create_app
from numaserve.server.engine.types import Aborted, GenerationFailed
from tool_cases import CALL, CLOCK, SECOND, WEATHER, Template

from tests.support.api_fakes import CONTEXT, MODEL, REPLY, FakeEngine, make_context
from tests.support.byte_tokenizer import EOS

_ANSWER = f"<think>\nLet me see.\n</think>\n\nI look. {CALL}{SECOND}"
_TOOLS = [{"type": "function", "function": each} for each in (WEATHER, CLOCK)]
_FAILING = {"fail_after": 2, "failure": GenerationFailed("A worker died.")}
_SLOW = {"delay": 0.015}
_USAGE = {"stream_options": {"include_usage": True}}
_CONTINUOUS = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}


class StreamCase(NamedTuple):
    """A request, as the fields that differ from the smallest one, and what the engine does."""

    fields: Mapping[str, Any] = {}
    reply: str = REPLY
    engine: Mapping[str, Any] = {}


_COMMON = {
    "text": StreamCase(engine={"stop_reason": EOS}),
    "slow": StreamCase(engine=_SLOW),
    "failing": StreamCase(engine=_FAILING),
}
CASES: dict[str, dict[str, StreamCase]] = {
    "/v1/chat/completions": {
        **_COMMON,
        "thought-and-calls": StreamCase({"tools": _TOOLS}, _ANSWER),
        "older-call": StreamCase({"functions": [WEATHER]}, CALL),
        "logprobs": StreamCase({"logprobs": True, "top_logprobs": 2, "return_token_ids": True}),
        "usage": StreamCase(
            _USAGE | {"prediction": {"type": "content", "content": "abc"}}, engine={"predicted": (3, 4)}
        ),
        "usage-so-far": StreamCase(_CONTINUOUS),
    },
    "/v1/completions": {
        **_COMMON,
        "logprobs": StreamCase({"logprobs": 2, "echo": True, "return_token_ids": True, "n": 2}),
        "usage": StreamCase(_USAGE),
        "usage-so-far": StreamCase(_CONTINUOUS),
    },
    "/v1/messages": {
        **_COMMON,
        "thought-and-call": StreamCase(
            {
                "tools": [{"name": "weather", "input_schema": WEATHER["parameters"]}],
                "thinking": {"type": "enabled", "budget_tokens": 1024},
                "max_tokens": 1000,
            },
            _ANSWER,
        ),
        "stop-sequence": StreamCase({"stop_sequences": ["!"]}, engine={"stop_reason": "!"}),
    },
    "/v1/responses": {
        **_COMMON,
        "thought-and-calls": StreamCase(
            {"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "function", **WEATHER}]}]},
            _ANSWER.replace("weather", "n__weather"),
        ),
        "logprobs": StreamCase({"top_logprobs": 2}),
        "incomplete": StreamCase({"max_output_tokens": 3}),
    },
    "/generate": {
        **_COMMON,
        "several": StreamCase({"sampling_params": {"n": 2, "max_new_tokens": 3}}),
        "prompt-logprobs": StreamCase(
            {"return_logprob": True, "top_logprobs_num": 2, "logprob_start_len": 0, "return_text_in_logprobs": True}
        ),
        "named-logprobs": StreamCase({"return_logprob": True, "token_ids_logprob": [7]}),
        "aborted": StreamCase(engine={"fail_after": 2, "failure": Aborted()}),
    },
    "/api/chat": {
        **_COMMON,
        "thought-and-calls": StreamCase({"tools": _TOOLS}, _ANSWER),
        "logprobs": StreamCase({"logprobs": True, "top_logprobs": 2}),
    },
    "/api/generate": {
        **_COMMON,
        "thought": StreamCase({}, _ANSWER),
        "logprobs": StreamCase({"logprobs": True, "top_logprobs": 2}),
    },
    "/api/pull": {"model": StreamCase({"model": MODEL})},
}


def body_of(path: str, case: StreamCase) -> dict[str, Any]:
    """Return the body of a request to `path`."""
    return GENERATING.get(path, {}) | case.fields | {"stream": True}


def streaming_app(engine: FakeEngine) -> FastAPI:
    """Return an application over a model that calls tools and thinks; comments are sent while `engine` is slow."""
    context = replace(
        make_context(engine, takes_predictions=True, sse_ping_seconds=0.01),
        tokenizer=Template(),
        tool_format=tool_formats()["hermes"],
        reasoning_format=reasoning_formats()["think"],
    )
    return create_app(replace(context, limits=replace(context.limits, context_length=8 * CONTEXT)))
