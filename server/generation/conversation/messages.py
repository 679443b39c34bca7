"""The messages of a conversation that was checked."""

from collections.abc import Sequence
from typing import Annotated, Any, Protocol

import msgspec
from numaserve.server.http.fields.types import made_of
from pydantic import Field

MAX_MESSAGES = 16384


class Conversation(msgspec.Struct, frozen=True):
    """Messages as data only: those of a long body are checked in another process."""

    messages: list[dict[str, Any]]  # as the chat template sees them
    characters: int
    needs_tools: bool  # only a template that knows of tools can write them


class Message(Protocol):
    """One message, as a surface has it."""

    @property
    def needs_tools(self) -> bool:
        """Whether only a template that knows of tools can write it."""

    def for_template(self) -> dict[str, Any]:
        """The message as the chat template sees it."""


def conversation_of(message: type[Message], at_least: int = 1) -> made_of:
    """What makes messages, at least so many, a conversation."""
    messages = Annotated[list[message], Field(min_length=at_least, max_length=MAX_MESSAGES)]  # type: ignore[valid-type]
    return made_of(messages, _conversation)


def _conversation(messages: Sequence[Message]) -> Conversation:
    shown = [message.for_template() for message in messages]
    characters = sum(len(message["content"]) for message in shown)
    return Conversation(shown, characters, any(message.needs_tools for message in messages))
