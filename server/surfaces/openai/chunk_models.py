"""The formats of the chunks of OpenAI's streams for the OpenAPI document."""

from typing import Literal

from numaserve.server.surfaces.response_models import (
    AnswerFrame,
    ChatLogprobs,
    CompletionLogprobs,
    FinishReason,
    TokenCounts,
    Usage,
)
from pydantic import BaseModel


class FunctionDelta(BaseModel):
    """The next piece of a function's arguments; the first piece has the name."""

    name: str | None = None
    arguments: str


class ToolCallDelta(BaseModel):
    """The next piece of a tool call; the first piece has the id and the type. `index` counts the calls of a message."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionDelta


class ChatDelta(BaseModel):
    """The next piece of a message; the first piece has the role. `function_call` is for requests with `functions`."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    refusal: None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCallDelta] | None = None
    function_call: FunctionDelta | None = None


class ChatChunkChoice(BaseModel):
    """The next piece of a choice; the last piece has the finish reason."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None
    token_ids: list[int] | None = None


class _Chunk(AnswerFrame):
    usage: Usage | TokenCounts | None = None


class ChatCompletionChunk(_Chunk):
    """An event of POST /v1/chat/completions: a piece of one choice, or the usage without choices."""

    object: Literal["chat.completion.chunk"]
    prompt_token_ids: list[int] | None = None
    choices: list[ChatChunkChoice]


class CompletionChunkChoice(BaseModel):
    """The next piece of a completion; the last piece has the finish reason."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class CompletionChunk(_Chunk):
    """An event of POST /v1/completions: a piece of one completion, or the usage without choices."""

    object: Literal["text_completion"]
    choices: list[CompletionChunkChoice]
