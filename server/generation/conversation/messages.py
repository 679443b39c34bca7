"""The messages of a validated conversation."""

from collections.abc import Sequence
from typing import Annotated, Any, Protocol

import msgspec
from numaserve.server.generation.conversation.content import characters
from numaserve.server.generation.conversation.images import Image, taken_out
from numaserve.server.http.fields.types import made_of
from pydantic import Field

MAX_MESSAGES = 16384


class Conversation(msgspec.Struct, frozen=True):
    """Messages as plain data: the messages of a long body are validated in another process."""

    messages: list[dict[str, Any]]  # in the chat template's format
    characters: int  # of texts
    needs_tools: bool  # only a template with tools can render them
    images: list[Image] = []  # in the order of their parts in the messages


class Message(Protocol):
    """A message in the format of an API surface."""

    @property
    def needs_tools(self) -> bool:
        """True if only a template with tools can render the message."""

    def for_template(self, param: str) -> dict[str, Any]:
        """Return the message, which the field `param` has, in the chat template's format; its images are in their
        parts."""


def conversation_of(message: type[Message], at_least: int = 1) -> made_of:
    """Return the validator that makes a conversation of `at_least` or more messages."""
    messages = Annotated[list[message], Field(min_length=at_least, max_length=MAX_MESSAGES)]  # type: ignore[valid-type]
    return made_of(messages, _conversation)


def _conversation(messages: Sequence[Message]) -> Conversation:
    shown = [message.for_template(f"messages[{index}]") for index, message in enumerate(messages)]
    length = sum(characters(message["content"]) for message in shown)
    return Conversation(shown, length, any(message.needs_tools for message in messages), taken_out(shown))
