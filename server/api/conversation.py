"""The messages of a conversation that was checked."""

from typing import Any

import msgspec


class Conversation(msgspec.Struct, frozen=True):
    """Messages as data only: those of a long body are checked in another process."""

    messages: list[dict[str, Any]]  # as the chat template sees them
    characters: int
    needs_tools: bool  # only a template that knows of tools can write them
