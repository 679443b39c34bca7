"""What a client asks for, whichever surface it came through.

A field that is None stands for the model's or the server's default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from numaserve.server.api.conversation import Conversation
from numaserve.server.api.sampling import Sampling


@dataclass(frozen=True)
class Chat:
    """A conversation, to be continued by the model's own chat template."""

    conversation: Conversation
    template_arguments: Mapping[str, Any] = field(default_factory=dict)
    add_generation_prompt: bool = True
    param: str = "messages"  # the field to blame


@dataclass(frozen=True)
class Texts:
    """Texts, or token ids, to be continued as they are."""

    prompts: Sequence[str] | Sequence[list[int]]
    echo: bool = False  # answers repeat their prompts
    param: str = "prompt"


@dataclass(frozen=True)
class Asked:
    """A request for text."""

    input: Chat | Texts
    sampling: Sampling
    model: str | None = None  # None: the one that is served
    max_tokens: int | None = None  # 0 scores the prompt only
    default_max_tokens: int | None = None  # None: as many as fit
    logprobs: int = -1  # of the output's tokens, as in `SamplingParams`
    prompt_logprobs: bool = False  # of the prompt's, too


@dataclass(frozen=True)
class Prompt:
    """A prompt as the model gets it."""

    tokens: list[int]
    text: str = ""  # as an answer that echoes it begins
    hidden: frozenset[int] = frozenset()  # tokens that are not in `text`
