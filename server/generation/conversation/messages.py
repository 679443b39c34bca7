"""The messages of a validated conversation."""

from collections.abc import Sequence
from typing import Annotated, Any, Protocol

import msgspec
from numaserve.server.http.fields.types import made_of
from pydantic import Field

MAX_MESSAGES = 16384


class Conversation(msgspec.Struct, frozen=True):
    """Messages as plain data: the messages of a long body are validated in another process."""

    messages: list[dict[str, Any]]  # in the chat template's format
    characters: int
    needs_tools: bool  # only a template with tools can render them


class Message(Protocol):
    """A message in the format of an API surface."""

    @property
    def needs_tools(self) -> bool:
        """True if only a template with tools can render the message."""

    def for_template(self) -> dict[str, Any]:
        """Return the message in the chat template's format."""


def conversation_of(message: type[Message], at_least: int = 1) -> made_of:
    """Return the validator that makes a conversation of `at_least` or more messages."""
    messages = Annotated[list[message], Field(min_length=at_least, max_length=MAX_MESSAGES)]  # type: ignore[valid-type]
    return made_of(messages, _conversation)


def _conversation(messages: Sequence[Message]) -> Conversation:
    shown = [message.for_template() for message in messages]
    characters = sum(len(message["content"]) for message in shown)
    return Conversation(shown, characters, any(message.needs_tools for message in messages))
