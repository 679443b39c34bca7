"""The items of an input, as a conversation that chat templates know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from numaserve.server.api.conversation import MAX_MESSAGES, Conversation
from numaserve.server.api.fields import ShortText, Strict, Text, Unused, made_of
from numaserve.server.api.openai.messages import CalledFunction
from numaserve.server.api.turns import Turn, assistant_turn, conversation_from, join_neighbours, text_of
from numaserve.server.api.typed import only_types, tag_of, text_or_list
from pydantic import Discriminator, Field, Tag

_MAX_PARTS = 16384
_UNSERVED = {"input_image": "images", "input_file": "files", "input_audio": "audio", "item_reference": "references"}


class TextContent(Strict):
    """A text."""

    type: Literal["input_text", "output_text", "text"]
    text: Text
    annotations: Unused = None
    logprobs: Unused = None


_Part = Annotated[TextContent, only_types(("input_text", "output_text", "text"), _UNSERVED)]
Texts = Annotated[
    Annotated[Text, Tag("[text]")] | Annotated[list[_Part], Field(max_length=_MAX_PARTS), Tag("[list]")],
    Discriminator(text_or_list),
]


class MessageItem(Strict):
    """A message."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Texts
    id: Unused = None
    status: Unused = None
    phase: Unused = None


class FunctionCallItem(CalledFunction):
    """A call that an earlier answer made."""

    type: Literal["function_call"]
    call_id: ShortText
    id: Unused = None
    status: Unused = None


class FunctionOutputItem(Strict):
    """The result of a call."""

    type: Literal["function_call_output"]
    call_id: ShortText
    output: Texts
    id: Unused = None
    status: Unused = None


class ThoughtText(Strict):
    """A part of a thought."""

    type: Literal["reasoning_text", "summary_text"]
    text: Text


class ReasoningItem(Strict):
    """The thought before an earlier answer, for templates that write it."""

    type: Literal["reasoning"]
    summary: Annotated[list[ThoughtText], Field(max_length=_MAX_PARTS)] | None = None
    content: Annotated[list[ThoughtText], Field(max_length=_MAX_PARTS)] | None = None
    encrypted_content: Unused = None
    id: Unused = None
    status: Unused = None


_KINDS = ("message", "function_call", "function_call_output", "reasoning")
Item = Annotated[
    Annotated[MessageItem, Tag("[message]")]
    | Annotated[FunctionCallItem, Tag("[function_call]")]
    | Annotated[FunctionOutputItem, Tag("[function_call_output]")]
    | Annotated[ReasoningItem, Tag("[reasoning]")],
    Discriminator(tag_of("message")),
    only_types(_KINDS, _UNSERVED, default="message"),
]


def _turn(item: MessageItem | FunctionCallItem | FunctionOutputItem | ReasoningItem) -> Turn:
    match item:
        case MessageItem():
            role = "system" if item.role == "developer" else item.role
            return {"role": role, "content": text_of(item.content)}
        case FunctionCallItem():
            return assistant_turn(calls=[call_turn(item.call_id, item.name, item.arguments)])
        case FunctionOutputItem():
            return {"role": "tool", "content": text_of(item.output), "tool_call_id": item.call_id}
        case ReasoningItem():
            return assistant_turn(thought=text_of(item.content or item.summary))


def call_turn(call_id: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """A call as templates know it."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _conversation(given: str | Sequence[Any]) -> Conversation:
    if isinstance(given, str):
        return conversation_from([{"role": "user", "content": given}])
    return conversation_from(join_neighbours(map(_turn, given), {"assistant"}))


def _kind_of_input(value: object) -> str:
    return "[items]" if isinstance(value, list) else "[text]"


_Items = Annotated[list[Item], Field(min_length=1, max_length=MAX_MESSAGES)]
Input = Annotated[
    Conversation,
    made_of(
        Annotated[Annotated[Text, Tag("[text]")] | Annotated[_Items, Tag("[items]")], Discriminator(_kind_of_input)],
        _conversation,
    ),
]
