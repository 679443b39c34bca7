"""Contents that are texts, which chat templates of some vision models write as if they were empty.

The published templates of Idefics3 and SmolVLM read lists of parts alone.
"""

from __future__ import annotations

from typing import Any

from numaserve.server.generation.conversation.content import Content, parts_of
from numaserve.server.generation.conversation.turns import Turn
from numaserve.server.tokenizer.types import ChatTemplateError, RendersChats

_MARK = "a question"


class TextContents:
    """Renders contents that are texts as lists of one part, where a chat template does not write them otherwise.

    The template is probed once, with a turn of the server's own.
    """

    def __init__(self, template: RendersChats) -> None:
        self._template = template
        self._needs_lists: bool | None = None

    def render_chat(self, messages: list[Turn], **arguments: Any) -> str:
        """Return the conversation, as `RendersChats` does."""
        if self._needs_lists is None:
            self._needs_lists = not self._is_written(_MARK) and self._is_written(parts_of(_MARK))
        if self._needs_lists:
            messages = [{**turn, "content": parts_of(turn["content"])} for turn in messages]
        return self._template.render_chat(messages, **arguments)

    def _is_written(self, content: Content) -> bool:
        try:
            return _MARK in self._template.render_chat([{"role": "user", "content": content}])
        except ChatTemplateError:
            return False
