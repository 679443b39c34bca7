"""The shapes of Anthropic's answers, for the OpenAPI document, after Anthropic's reference of the Messages API."""

from typing import Any, Literal

from pydantic import BaseModel


class AnthropicErrorDetail(BaseModel):
    """What went wrong."""

    type: str
    message: str


class AnthropicError(BaseModel):
    """Every answer other than 2xx."""

    type: Literal["error"]
    error: AnthropicErrorDetail
    request_id: str | None


class AnthropicUsage(BaseModel):
    """Tokens; `input_tokens` are those of the prompt that did not come from the cache."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class AnthropicText(BaseModel):
    """A text that the model wrote."""

    type: Literal["text"]
    text: str


class AnthropicThinking(BaseModel):
    """The thought before an answer."""

    type: Literal["thinking"]
    thinking: str
    signature: Literal["unsigned"]


class AnthropicToolUse(BaseModel):
    """A call that the model wants made. An input that is no JSON object is the one field `INVALID_JSON`."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class AnthropicMessage(BaseModel):
    """The answer of /v1/messages."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[AnthropicText | AnthropicThinking | AnthropicToolUse]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]
    stop_sequence: str | None
    usage: AnthropicUsage


class TokenCount(BaseModel):
    """The answer of /v1/messages/count_tokens."""

    input_tokens: int
