"""The formats of Anthropic's answers for the OpenAPI document, after Anthropic's reference of the Messages API."""

from typing import Any, Literal

from pydantic import BaseModel


class AnthropicErrorDetail(BaseModel):
    """Kind and message of an error."""

    type: str
    message: str


class AnthropicError(BaseModel):
    """The body of every error response."""

    type: Literal["error"]
    error: AnthropicErrorDetail
    request_id: str | None


class AnthropicUsage(BaseModel):
    """Token counts. `input_tokens` counts the prompt tokens that did not come from the cache."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class AnthropicText(BaseModel):
    """A text that the model generated."""

    type: Literal["text"]
    text: str


class ThinkingFrame(BaseModel):
    """The fields that a thought has from its beginning."""

    type: Literal["thinking"]
    thinking: str


class AnthropicThinking(ThinkingFrame):
    """The thinking before a response."""

    signature: Literal["unsigned"]


class AnthropicToolUse(BaseModel):
    """A tool call of the model. An input that is not a JSON object becomes an object with the single field
    `INVALID_JSON`."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]


class MessageFrame(BaseModel):
    """The fields that a message has from its beginning."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    usage: AnthropicUsage


class AnthropicMessage(MessageFrame):
    """The response of POST /v1/messages."""

    content: list[AnthropicText | AnthropicThinking | AnthropicToolUse]
    stop_reason: StopReason
    stop_sequence: str | None


class TokenCount(BaseModel):
    """The response of POST /v1/messages/count_tokens."""

    input_tokens: int
