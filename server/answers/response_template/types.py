"""Requests to the process that reads answers, and its replies."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

import msgspec

CALLS, CONTENT = "tool_calls", "content"
THOUGHTS = ("reasoning_content", "thinking", "reasoning")  # the names that templates use for a thought


class Question(msgspec.Struct, frozen=True):
    """An answer to parse: `text` follows `prompt`.

    `tools` maps the names of tools to their parameters. Calls are separated only with `calls`, and thoughts only with
    `thoughts`; otherwise they remain text of the answer, unchanged. `hides`: special tokens are removed from texts.
    """

    prompt: str
    text: str
    tools: dict[str, dict[str, Any] | None]
    calls: bool
    thoughts: bool
    hides: bool = True


def finder_of(texts: Collection[str]) -> re.Pattern[str]:
    """Return a pattern that finds any of `texts`, none of which is empty, in another text."""
    return re.compile("|".join(map(re.escape, texts)) or "(?!)")


class ReadCall(msgspec.Struct, frozen=True):
    """A call. `arguments` is JSON text unless the model wrote other text. `id` is None if the model wrote none."""

    name: str
    arguments: str
    id: str | None = None


class ReadAnswer(msgspec.Struct, frozen=True):
    """A parsed answer."""

    content: str
    reasoning: str
    calls: list[ReadCall]
