"""The shapes of Anthropic's answers, for the OpenAPI document, after Anthropic's reference of the Messages API."""

from typing import Literal

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


class AnthropicMessage(BaseModel):
    """The answer of /v1/messages."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[AnthropicText]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "model_context_window_exceeded"]
    stop_sequence: str | None
    usage: AnthropicUsage


class TokenCount(BaseModel):
    """The answer of /v1/messages/count_tokens."""

    input_tokens: int
