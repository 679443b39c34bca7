"""The body of POST /api/chat."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from numaserve.server.generation.asked import Asked, Chat
from numaserve.server.generation.conversation.messages import Conversation, conversation_of
from numaserve.server.http.fields.types import Data, ShortText, Strict, Text, Unused, conflict
from numaserve.server.surfaces.image_parts import ImageTexts, images_in, with_images
from numaserve.server.surfaces.ollama.options import OllamaFields
from numaserve.server.surfaces.openai.chats.tools_schema import Tools
from numaserve.server.surfaces.tool_fields import tool_use
from pydantic import Field, model_validator

MAX_TOOL_CALLS = 128


class OllamaCalledFunction(Strict):
    """The function that the model called."""

    name: ShortText
    arguments: Data
    description: Unused = None
    index: Unused = None


class OllamaToolCall(Strict):
    """A tool call of an earlier response."""

    function: OllamaCalledFunction
    id: Unused = None
    type: Unused = None

    def for_template(self) -> dict[str, object]:
        """Return the call in the format of templates."""
        return {"type": "function", "function": {"name": self.function.name, "arguments": self.function.arguments}}


class OllamaMessage(Strict):
    """A message of the conversation."""

    role: Literal["system", "user", "assistant", "tool"]
    """Author of the message."""
    content: Text | None = None
    """Text of the message."""
    tool_calls: Annotated[list[OllamaToolCall], Field(max_length=MAX_TOOL_CALLS)] | None = None
    """Tool calls of the assistant, for chat templates that render them."""
    tool_name: ShortText | None = None
    """Name of the tool that returned this result."""
    tool_call_id: Unused = None
    images: ImageTexts = None
    """Images in base64; the model sees them before the text."""
    thinking: Text | None = None
    """Thinking of the assistant, for chat templates that render it."""

    @model_validator(mode="after")
    def _only_the_assistant_calls(self) -> OllamaMessage:
        if self.tool_calls and self.role != "assistant":
            raise conflict("tool_calls", "'tool_calls' is allowed only in a message with the role 'assistant'")
        return self

    @property
    def needs_tools(self) -> bool:
        """Whether the message needs a template that supports tools."""
        return self.role == "tool" or bool(self.tool_calls)

    def for_template(self, param: str) -> dict[str, Any]:
        """Return the message, which the field `param` has, in the format of chat templates."""
        content = with_images(images_in(self.images, f"{param}.images"), self.content or "")
        message: dict[str, Any] = {"role": self.role, "content": content}
        if self.tool_calls:
            message["tool_calls"] = [call.for_template() for call in self.tool_calls]
        if self.thinking:
            message |= {"reasoning_content": self.thinking, "thinking": self.thinking}  # templates use one or the other
        if self.tool_name is not None:
            message["name"] = self.tool_name
        return message


class OllamaChatRequest(OllamaFields):
    """The body of POST /api/chat."""

    messages: Annotated[Conversation, conversation_of(OllamaMessage, at_least=0)] | None = None
    """Conversation so far; without messages the model generates nothing."""
    tools: Tools | None = None
    """Functions that the model can call."""

    def asked(self) -> Asked | None:
        """Return the request; None if the client only wants to load the model."""
        if self.messages is None or not self.messages.messages:
            return None
        options = self.given_options
        return Asked(
            Chat(self.messages, self.template_arguments),
            options.sampling(),
            model=self.model,
            default_max_tokens=options.most_output,
            logprobs=self.counted_logprobs,
            constrained=self.constrained,
            tools=tool_use(self.tools or [], None),
        )
