"""System turns after the first turn, which some chat templates refuse and others drop silently."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from numaserve.server.generation.conversation.content import joined
from numaserve.server.generation.conversation.turns import Turn
from numaserve.server.tokenizer.types import ChatTemplateError, RendersChats

_MARK = "a late instruction"
_LATE: Turn = {"role": "system", "content": _MARK}
_USER: Turn
_ASSISTANT: Turn
_USER, _ASSISTANT = {"role": "user", "content": "a question"}, {"role": "assistant", "content": "an answer"}
# In the middle, where clients put changes since the beginning of the conversation; at the end; and after another system
# turn.
_PROBES = (
    [_USER, _LATE, _ASSISTANT, _USER],
    [_USER, _ASSISTANT, _USER, _LATE],
    [{"role": "system", "content": "an instruction"}, _LATE, _USER],
)


class LateSystem:
    """Folds the system turns after the first turn, where a chat template does not write them.

    The template is probed once, with turns of the server's own. The result must not depend on the conversation: the
    prefixes of two requests would differ.
    """

    def __init__(self, template: RendersChats) -> None:
        self._template = template
        self._are_written: bool | None = None

    def folded(self, turns: list[Turn]) -> list[Turn]:
        """Return `turns`, with late system turns as user turns where the template does not write them.

        Renders at most three times. Raises `ChatTemplateUnavailable`.
        """
        if not any(map(_is_system, islice(turns, 1, None))):
            return turns
        if self._are_written is None:
            self._are_written = all(self._is_written(probe) for probe in _PROBES)
        return turns if self._are_written else fold(turns)

    def _is_written(self, probe: list[dict[str, object]]) -> bool:
        try:
            return _MARK in self._template.render_chat(probe)
        except ChatTemplateError:
            return False


def fold(turns: Iterable[Turn]) -> list[Turn]:
    """Return the turns, with late system turns as user turns; the first system turns become one.

    A folded turn is joined with adjacent user turns, as many templates require user and assistant to alternate. The
    folded turn keeps its place: moving it to the first system turn would change the prefix, which is cached.
    """
    folded: list[Turn] = []
    joins = False  # whether the last turn absorbs the next turn of its role
    for turn in turns:
        is_late = _is_system(turn) and bool(folded) and not _is_system(folded[-1])
        role = "user" if is_late else turn["role"]
        if folded and folded[-1]["role"] == role and (joins or is_late or role == "system"):
            folded[-1]["content"] = joined([folded[-1]["content"], turn["content"]])
        else:
            folded.append({**turn, "role": role})
            joins = False
        joins = joins or is_late
    return folded


def _is_system(turn: Turn) -> bool:
    return bool(turn["role"] == "system")
