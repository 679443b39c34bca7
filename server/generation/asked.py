"""What a client asks for, whichever surface it came through.

A field that is None stands for the model's or the server's default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from numaserve.server.answers.tools.types import Tool
from numaserve.server.generation.conversation.messages import Conversation
from numaserve.server.generation.token_choice import Sampling
from numaserve.server.structured.types import Constraint


@dataclass(frozen=True)
class Chat:
    """A conversation, to be continued by the model's own chat template."""

    conversation: Conversation
    template_arguments: Mapping[str, Any] = field(default_factory=dict)
    add_generation_prompt: bool = True
    continue_final: bool = False  # the answer goes on from the last message, which is not ended
    param: str = "messages"  # the field to blame


@dataclass(frozen=True)
class Texts:
    """Texts, or token ids, to be continued as they are."""

    prompts: Sequence[str] | Sequence[list[int]]
    echo: bool = False  # answers repeat their prompts
    truncate: bool = False  # a text that does not fit is cut to what fits
    suffix: str = ""  # what follows the answer; there is one prompt then, which is a text
    param: str = "prompt"


@dataclass(frozen=True)
class ToolUse:
    """The tools of a request, and which of them the answer calls."""

    tools: tuple[Tool, ...]
    choice: Literal["auto", "none", "required"] = "auto"
    allowed: tuple[str, ...] = ()  # the names of the tools that may be called; all of them where it is empty
    parallel: bool = True  # several calls in an answer

    @property
    def offered(self) -> tuple[Tool, ...]:
        """The tools that the model is told of."""
        return () if self.choice == "none" else self.tools

    @property
    def callable(self) -> tuple[Tool, ...]:
        """The tools that the answer may call."""
        return tuple(tool for tool in self.offered if not self.allowed or tool.name in self.allowed)

    @cached_property
    def characters(self) -> int:
        """The length of what the model is told. Of large schemas it takes too long for the event loop at first."""
        return sum(len(tool.name) + len(tool.description) + _length(tool.parameters) for tool in self.offered)


def _length(value: object) -> int:
    """About the length of a value as JSON."""
    if isinstance(value, Mapping):
        return sum(len(key) + 4 + _length(item) for key, item in value.items())
    if isinstance(value, list):
        return sum(2 + _length(item) for item in value)
    return len(value) if isinstance(value, str) else 4


def effort_arguments(effort: str | None) -> dict[str, Any]:
    """The variables of chat templates that say how long to think; a template has one of them, or none."""
    if effort is None:
        return {}
    if effort == "none":
        return {"enable_thinking": False, "thinking": False}
    return {"reasoning_effort": "xhigh" if effort == "max" else effort}


@dataclass(frozen=True)
class Reasoning:
    """What is asked about the thought before an answer, where the model has one."""

    include: bool = True  # whether the thought is in the answer
    separate: bool = True  # whether it is told apart from the answer's text
    max_tokens: int | None = None  # after which it is closed


@dataclass(frozen=True)
class Constrained:
    """What an answer must match."""

    constraint: Constraint
    param: str  # the field to blame


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
    token_ids_logprob: Sequence[int] = ()  # tokens that have log-probabilities at each position of the output
    pool: bool = False  # the prompts' embeddings are wanted in place of text
    tools: ToolUse | None = None
    reasoning: Reasoning = field(default_factory=Reasoning)
    constrained: Constrained | None = None
    prediction: str = ""  # what the client thinks that the answer will be
    priority: int = 0  # as in `GenerationRequest`
    resumed: Sequence[int] = ()  # tokens with which the one answer begins


@dataclass(frozen=True)
class Prompt:
    """A prompt as the model gets it."""

    tokens: list[int]
    text: str = ""  # as an answer that echoes it begins; of a conversation, what the template wrote
    hidden: frozenset[int] = frozenset()  # tokens that are not in `text`
    prediction: Sequence[int] = ()  # tokens of what the answer was said to be


def total_tokens(prompts: Sequence[Prompt]) -> int:
    """The tokens of all prompts, each of which counts once whatever `n` is."""
    return sum(len(prompt.tokens) for prompt in prompts)
