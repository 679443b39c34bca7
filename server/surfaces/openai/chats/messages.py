"""The messages of a conversation, in the format of clients and in the format of chat templates."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from numaserve.server.generation.conversation.messages import Conversation, conversation_of
from numaserve.server.generation.conversation.turns import content_of
from numaserve.server.http.fields.json_data import arguments_of
from numaserve.server.http.fields.typed import only_types, text_or_list
from numaserve.server.http.fields.types import Neutral, ShortText, Strict, Text, Unused, conflict, neutral
from numaserve.server.surfaces.image_parts import IMAGE_TYPES, OpenAiImage, text_or_image
from pydantic import Discriminator, Field, StringConstraints, Tag, model_validator

MAX_TOOL_CALLS = 128
_ROLES = {"developer": "system", "function": "tool"}  # templates know the older one


class TextPart(Strict):
    """A text part of a message's content."""

    type: Literal["text"]
    text: Text
    cache_control: Unused = None


_Text = Annotated[TextPart, only_types(("text",))]
# Tags, so that an error is about the kind of content that was sent; with brackets, so that `param_of` leaves them out.
TextContent = Annotated[
    Annotated[Text, Tag("[text]")] | Annotated[list[_Text], Field(min_length=1), Tag("[list]")],
    Discriminator(text_or_list),
]
_Part = Annotated[
    Annotated[TextPart, Tag("[text]")] | Annotated[OpenAiImage, Tag("[image]")],
    Discriminator(text_or_image),
    only_types(("text", "image_url", "input_image"), confused=IMAGE_TYPES),
]
Content = Annotated[
    Annotated[Text, Tag("[text]")] | Annotated[list[_Part], Field(min_length=1), Tag("[list]")],
    Discriminator(text_or_list),
]


class CalledFunction(Strict):
    """The function that the model called."""

    name: ShortText
    arguments: Text
    """Arguments in the JSON that the model generated. The chat template receives text that is not a JSON object as
    `{"arguments": text}`."""


class ToolCall(Strict):
    """A tool call of an earlier response."""

    id: ShortText | None = None
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None  # in the parts of a streamed answer

    def for_template(self) -> dict[str, object]:
        """Return the call in the format of templates: with its arguments as an object, as transformers documents it."""
        function = {"name": self.function.name, "arguments": arguments_of(self.function.arguments)}
        call: dict[str, object] = {"type": self.type, "function": function}
        return call if self.id is None else {**call, "id": self.id}


class Message(Strict):
    """A message of the conversation. Clients send earlier responses back with additional fields of their own objects;
    the server accepts any value in fields that do not affect the model."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    """Author of the message; `developer` is OpenAI's newer name for `system`."""
    content: Content | None = None
    """Text of the message, as a string or a list of text and image parts; null is allowed only for the assistant."""
    name: Annotated[Text, StringConstraints(max_length=256)] | None = None
    """Name of the author, for chat templates that render it."""
    tool_calls: Annotated[list[ToolCall], Field(max_length=MAX_TOOL_CALLS)] | None = None
    """Tool calls of the assistant, for chat templates that render them."""
    tool_call_id: ShortText | None = None
    """Id of the tool call that this result answers."""
    function_call: CalledFunction | None = None
    """Tool call in OpenAI's older format."""
    reasoning_content: Text | None = None
    """Reasoning of an earlier response, for chat templates that render it."""
    reasoning: Text | None = None
    """vLLM's newer name for `reasoning_content`."""
    audio: Annotated[Neutral, neutral(media="audio")] = None
    prefix: Annotated[Neutral, neutral(False)] = None  # an answer to be continued

    refusal: Unused = None
    annotations: Unused = None
    parsed: Unused = None
    provider_specific_fields: Unused = None
    id: Unused = None
    cache_control: Unused = None

    @model_validator(mode="after")
    def _fields_fit_together(self) -> Message:
        if self.content is None and self.role != "assistant":
            raise conflict("content", f"a message with the role '{self.role}' needs 'content'")
        if self.tool_calls and self.role != "assistant":
            raise conflict("tool_calls", "'tool_calls' is allowed only in a message with the role 'assistant'")
        if self.function_call is not None and (self.role != "assistant" or self.tool_calls):
            raise conflict(
                "function_call",
                "'function_call' is allowed only in a message with the role 'assistant' and without 'tool_calls'",
            )
        return self

    @property
    def needs_tools(self) -> bool:
        """Whether the message needs a template that supports tools."""
        return self.role in {"tool", "function"} or bool(self.calls)

    @property
    def calls(self) -> list[ToolCall]:
        """The calls of the message, in either format."""
        return self.tool_calls or ([ToolCall(function=self.function_call)] if self.function_call else [])

    def for_template(self, param: str) -> dict[str, Any]:
        """Return the message, which the field `param` has, in the format of chat templates."""
        content = content_of(self.content, f"{param}.content")
        message: dict[str, Any] = {"role": _ROLES.get(self.role, self.role), "content": content}
        if self.name is not None:
            message["name"] = self.name
        if calls := self.calls:
            message["tool_calls"] = [call.for_template() for call in calls]
        if thought := self.reasoning_content or self.reasoning:
            # gpt-oss' template uses the second name.
            message |= {"reasoning_content": thought, "thinking": thought}
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        return message


Messages = Annotated[Conversation, conversation_of(Message)]
