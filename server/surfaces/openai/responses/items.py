"""The items of an input, as clients send them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from numaserve.server.generation.conversation.messages import MAX_MESSAGES
from numaserve.server.generation.conversation.turns import IMAGE_LEFT_OUT, assistant_turn, text_of
from numaserve.server.http.fields.typed import kind_of, only_types, tag_of, text_or_list
from numaserve.server.http.fields.types import ShortText, Strict, Text, Unused, made_of
from numaserve.server.surfaces.openai.chats.messages import CalledFunction
from numaserve.server.surfaces.openai.responses.entries import (
    REFERENCE,
    Entry,
    Given,
    call_turn,
    input_text,
    of_function,
    output_text,
    qualified,
)
from pydantic import Discriminator, Field, Tag

_MAX_PARTS = 16384


def _kind_of_part(value: object) -> str:
    return "[image]" if kind_of(value) == "input_image" else "[text]"


class TextContent(Strict):
    """A text."""

    type: Literal["input_text", "output_text", "text"]
    text: Text
    annotations: Unused = None
    logprobs: Unused = None


_Part = Annotated[TextContent, only_types(("input_text", "output_text", "text"))]
Texts = Annotated[
    Annotated[Text, Tag("[text]")] | Annotated[list[_Part], Field(max_length=_MAX_PARTS), Tag("[list]")],
    Discriminator(text_or_list),
]


class OutputImage(Strict):
    """An image in a function result; the server replaces it with a placeholder text."""

    type: Literal["input_image"]
    image_url: Unused = None
    file_id: Unused = None
    detail: Unused = None

    @property
    def text(self) -> str:
        """The text for the model."""
        return IMAGE_LEFT_OUT


_OutputPart = Annotated[
    Annotated[TextContent, Tag("[text]")] | Annotated[OutputImage, Tag("[image]")],
    Discriminator(_kind_of_part),
    only_types(("input_text", "output_text", "text", "input_image")),
]
_Outputs = Annotated[
    Annotated[Text, Tag("[text]")] | Annotated[list[_OutputPart], Field(max_length=_MAX_PARTS), Tag("[list]")],
    Discriminator(text_or_list),
]


class MessageItem(Strict):
    """A message of the conversation."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Texts
    id: Unused = None
    status: Unused = None
    phase: Unused = None

    def entry(self) -> Entry:
        """Return the item with its turn."""
        part = output_text if self.role == "assistant" else input_text
        texts = [self.content] if isinstance(self.content, str) else [part.text for part in self.content]
        item = {"type": self.type, "role": self.role, "content": list(map(part, texts)), "status": "completed"}
        role = "system" if self.role == "developer" else self.role
        return Entry.of(item, {"role": role, "content": text_of(self.content)})


class FunctionCallItem(CalledFunction):
    """A tool call of an earlier response."""

    type: Literal["function_call"]
    call_id: ShortText
    namespace: ShortText | None = None
    """Namespace of the function, if any."""
    id: Unused = None
    status: Unused = None

    def entry(self) -> Entry:
        """Return the item with its turn."""
        function = of_function(self.name, self.namespace)
        item = {"type": self.type, "call_id": self.call_id, **function, "arguments": self.arguments}
        item["status"] = "completed"
        return Entry.of(item, call_turn(self.call_id, qualified(self.name, self.namespace), self.arguments))


class FunctionOutputItem(Strict):
    """The result of a tool call."""

    type: Literal["function_call_output"]
    call_id: ShortText
    output: _Outputs
    id: Unused = None
    status: Unused = None

    def entry(self) -> Entry:
        """Return the item with its turn."""
        output = self.output if isinstance(self.output, str) else [input_text(part.text) for part in self.output]
        item = {"type": self.type, "call_id": self.call_id, "output": output, "status": "completed"}
        return Entry.of(item, {"role": "tool", "content": text_of(self.output), "tool_call_id": self.call_id})


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

    def entry(self) -> Entry:
        """Return the item with its turn."""
        summary, content = ([part.model_dump() for part in parts or ()] for parts in (self.summary, self.content))
        item = {"type": self.type, "summary": summary, "content": content, "status": "completed"}
        return Entry.of(item, assistant_turn(thought=text_of(self.content or self.summary)))


class ItemReference(Strict):
    """An item of an earlier response, identified by its id."""

    type: Literal["item_reference"]
    id: ShortText

    def entry(self) -> Entry:
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
    return Given([item.entry() for item in items])


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
