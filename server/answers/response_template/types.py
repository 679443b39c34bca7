"""What is asked of the process that reads answers, and what it says."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

import msgspec

CALLS, CONTENT = "tool_calls", "content"
THOUGHTS = ("reasoning_content", "thinking", "reasoning")  # what templates call a thought


class Question(msgspec.Struct, frozen=True):
    """An answer to read: `text` follows `prompt`. `tools` are the parameters of tools by name; calls are told apart
    only with `calls`, thoughts only with `thoughts`, and are else text of the answer as they stand. `hides`: special
    tokens are no part of texts."""

    prompt: str
    text: str
    tools: dict[str, dict[str, Any] | None]
    calls: bool
    thoughts: bool
    hides: bool = True


def finder_of(texts: Collection[str]) -> re.Pattern[str]:
    """What finds any of `texts`, none of them empty, in another."""
    return re.compile("|".join(map(re.escape, texts)) or "(?!)")


class ReadCall(msgspec.Struct, frozen=True):
    """A call; `arguments` is JSON text, unless the model did not write any. `id` is None where the model wrote none."""

    name: str
    arguments: str
    id: str | None = None


class ReadAnswer(msgspec.Struct, frozen=True):
    """An answer, read."""

    content: str
    reasoning: str
    calls: list[ReadCall]
