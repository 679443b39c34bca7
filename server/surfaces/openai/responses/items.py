"""The items of an input, as clients send them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

from numaserve.server.generation.conversation.images import ImagePart
from numaserve.server.generation.conversation.messages import MAX_MESSAGES
from numaserve.server.generation.conversation.turns import assistant_turn, content_of, text_of
from numaserve.server.http.fields.typed import only_types, tag_of, text_or_list
from numaserve.server.http.fields.types import ShortText, Strict, Text, Unused, made_of
from numaserve.server.surfaces.image_parts import IMAGE_TYPES, OpenAiImage, text_or_image
from numaserve.server.surfaces.openai.chats.messages import CalledFunction
from numaserve.server.surfaces.openai.responses.entries import (
    REFERENCE,
    Entry,
    Given,
    call_turn,
    input_image,
    input_text,
    of_function,
    output_text,
    qualified,
)
from pydantic import Discriminator, Field, Tag

_MAX_PARTS = 16384


class TextContent(Strict):
    """A text."""

    type: Literal["input_text", "output_text", "text"]
    text: Text
    annotations: Unused = None
    logprobs: Unused = None


_Part = Annotated[
    Annotated[TextContent, Tag("[text]")] | Annotated[OpenAiImage, Tag("[image]")],
    Discriminator(text_or_image),
    only_types(("input_text", "output_text", "text", "input_image"), confused=IMAGE_TYPES),
]
Contents = Annotated[
    Annotated[Text, Tag("[text]")] | Annotated[list[_Part], Field(max_length=_MAX_PARTS), Tag("[list]")],
    Discriminator(text_or_list),
]


class MessageItem(Strict):
    """A message of the conversation."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Contents
    id: Unused = None
    status: Unused = None
    phase: Unused = None

    def entry(self, param: str) -> Entry:
        """Return the item, which the field `param` has, with its turn."""
        text = output_text if self.role == "assistant" else input_text
        content = [text(self.content)] if isinstance(self.content, str) else _listed(self.content, text)
        item = {"type": self.type, "role": self.role, "content": content, "status": "completed"}
        role = "system" if self.role == "developer" else self.role
        return Entry.of(item, {"role": role, "content": content_of(self.content, f"{param}.content")})


class FunctionCallItem(CalledFunction):
    """A tool call of an earlier response."""

    type: Literal["function_call"]
    call_id: ShortText
    namespace: ShortText | None = None
    """Namespace of the function, if any."""
    id: Unused = None
    status: Unused = None

    def entry(self, _param: str) -> Entry:
        """Return the item with its turn."""
        function = of_function(self.name, self.namespace)
        item = {"type": self.type, "call_id": self.call_id, **function, "arguments": self.arguments}
        item["status"] = "completed"
        return Entry.of(item, call_turn(self.call_id, qualified(self.name, self.namespace), self.arguments))


class FunctionOutputItem(Strict):
    """The result of a tool call."""

    type: Literal["function_call_output"]
    call_id: ShortText
    output: Contents
    id: Unused = None
    status: Unused = None

    def entry(self, param: str) -> Entry:
        """Return the item, which the field `param` has, with its turn."""
        output = self.output if isinstance(self.output, str) else _listed(self.output, input_text)
        item = {"type": self.type, "call_id": self.call_id, "output": output, "status": "completed"}
        content = content_of(self.output, f"{param}.output")
        return Entry.of(item, {"role": "tool", "content": content, "tool_call_id": self.call_id})


class ThoughtText(Strict):
    """A part of a reasoning item."""

    type: Literal["reasoning_text", "summary_text"]
    text: Text


class ReasoningItem(Strict):
    """Reasoning of an earlier response, for chat templates that render it."""

    type: Literal["reasoning"]
    summary: Annotated[list[ThoughtText], Field(max_length=_MAX_PARTS)] | None = None
    content: Annotated[list[ThoughtText], Field(max_length=_MAX_PARTS)] | None = None
    encrypted_content: Unused = None
    id: Unused = None
    status: Unused = None

    def entry(self, _param: str) -> Entry:
        """Return the item with its turn."""
        summary, content = ([part.model_dump() for part in parts or ()] for parts in (self.summary, self.content))
        item = {"type": self.type, "summary": summary, "content": content, "status": "completed"}
        return Entry.of(item, assistant_turn(thought=text_of(self.content or self.summary)))


class ItemReference(Strict):
    """An item of an earlier response, identified by its id."""

    type: Literal["item_reference"]
    id: ShortText

    def entry(self, _param: str) -> Entry:
        """Return the placeholder of the item until the item is found."""
        return Entry(self.type, id=self.id)


_KINDS = ("message", "function_call", "function_call_output", "reasoning", REFERENCE)
Item = Annotated[
    Annotated[MessageItem, Tag("[message]")]
    | Annotated[ItemReference, Tag("[item_reference]")]
    | Annotated[FunctionCallItem, Tag("[function_call]")]
    | Annotated[FunctionOutputItem, Tag("[function_call_output]")]
    | Annotated[ReasoningItem, Tag("[reasoning]")],
    Discriminator(tag_of("message")),
    only_types(_KINDS, default="message"),
]


def _given(value: str | Sequence[Any]) -> Given:
    items: Sequence[Any] = [MessageItem(role="user", content=value)] if isinstance(value, str) else value
    return Given([item.entry(f"input[{index}]") for index, item in enumerate(items)])


def _listed(parts: Sequence[TextContent | OpenAiImage], text: Callable[[str], dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the parts of an item in the format of listings, which have no images."""
    return [input_image() if isinstance(part, ImagePart) else text(part.text) for part in parts]


def _kind_of_input(value: object) -> str:
    return "[items]" if isinstance(value, list) else "[text]"


_Items = Annotated[list[Item], Field(min_length=1, max_length=MAX_MESSAGES)]
Input = Annotated[
    Given,
    made_of(
        Annotated[Annotated[Text, Tag("[text]")] | Annotated[_Items, Tag("[items]")], Discriminator(_kind_of_input)],
        _given,
    ),
]
