"""The events of a message's stream for the OpenAPI document, after Anthropic's reference of the Messages API."""

from typing import Annotated, Any, Literal

from numaserve.server.surfaces.anthropic.response_models import (
    AnthropicError,
    AnthropicText,
    AnthropicToolUse,
    AnthropicUsage,
    MessageFrame,
    StopReason,
    ThinkingFrame,
)
from pydantic import BaseModel, Field


class AnthropicBegunMessage(MessageFrame):
    """A message at the beginning of its stream."""

    content: Annotated[list[Any], Field(max_length=0)]
    stop_reason: None
    stop_sequence: None


class AnthropicMessageStart(BaseModel):
    """The first event: the message begins. The usage counts the prompt."""

    type: Literal["message_start"]
    message: AnthropicBegunMessage


class AnthropicBegunThinking(ThinkingFrame):
    """A thought at its beginning."""

    signature: Literal[""]


class AnthropicBlockStart(BaseModel):
    """A block of the content begins. Its text or input is empty."""

    type: Literal["content_block_start"]
    index: int
    content_block: AnthropicText | AnthropicBegunThinking | AnthropicToolUse


class AnthropicTextDelta(BaseModel):
    """The next piece of a text."""

    type: Literal["text_delta"]
    text: str


class AnthropicThinkingDelta(BaseModel):
    """The next piece of a thought."""

    type: Literal["thinking_delta"]
    thinking: str


class AnthropicSignatureDelta(BaseModel):
    """The signature of a thought, at its end."""

    type: Literal["signature_delta"]
    signature: Literal["unsigned"]


class AnthropicInputDelta(BaseModel):
    """The next piece of a call's input, which is JSON when all pieces are joined."""

    type: Literal["input_json_delta"]
    partial_json: str


class AnthropicBlockDelta(BaseModel):
    """The next piece of a block."""

    type: Literal["content_block_delta"]
    index: int
    delta: AnthropicTextDelta | AnthropicThinkingDelta | AnthropicSignatureDelta | AnthropicInputDelta


class AnthropicBlockStop(BaseModel):
    """A block is complete."""

    type: Literal["content_block_stop"]
    index: int


class AnthropicMessageEnd(BaseModel):
    """The reason for the end of a message."""

    stop_reason: StopReason
    stop_sequence: str | None


class AnthropicMessageDelta(BaseModel):
    """All blocks are complete. The usage counts the whole message."""

    type: Literal["message_delta"]
    delta: AnthropicMessageEnd
    usage: AnthropicUsage


class AnthropicMessageStop(BaseModel):
    """The last event of a message."""

    type: Literal["message_stop"]


class AnthropicPing(BaseModel):
    """An event that keeps the connection alive while there is nothing to send."""

    type: Literal["ping"]


MESSAGE_EVENTS = (
    AnthropicMessageStart,
    AnthropicBlockStart,
    AnthropicBlockDelta,
    AnthropicBlockStop,
    AnthropicMessageDelta,
    AnthropicMessageStop,
    AnthropicPing,
    AnthropicError,
)
