"""The request of a client, independent of the API surface.

A field that is None stands for the model's or the server's default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from numaserve.server.answers.tools.types import Tool
from numaserve.server.generation.conversation.images import Image
from numaserve.server.generation.conversation.messages import Conversation
from numaserve.server.generation.token_choice import Sampling
from numaserve.server.http.explain import Problem
from numaserve.server.scheduler.images import PlacedTile
from numaserve.server.structured.types import Constraint
from numaserve.workers.interface.protocol import VectorForm

Pair = tuple[str, str]
Item = str | Pair  # of the inputs of a classifier


@dataclass(frozen=True)
class Chat:
    """A conversation, to be continued with the model's chat template."""

    conversation: Conversation
    template_arguments: Mapping[str, Any] = field(default_factory=dict)
    add_generation_prompt: bool = True
    continue_final: bool = False  # the answer continues the last message, which stays open
    param: str = "messages"  # the field to blame in an error


@dataclass(frozen=True)
class Length:
    """The maximum number of tokens of a prompt, special tokens included, and the treatment of a longer prompt."""

    limit: int | None = None  # None, or a number above it: the context length
    cut: Literal["start", "end"] | None = None  # the part of a longer prompt that is left out; None: it is refused
    param: str = "truncate"  # the field with the limit, to blame in an error


@dataclass(frozen=True)
class Texts:
    """Texts, or token ids, to be continued as they are."""

    prompts: Sequence[str] | Sequence[list[int]]
    echo: bool = False  # answers repeat their prompts
    length: Length = Length()
    suffix: str = ""  # text after the answer; then there is exactly one prompt, which is a text
    param: str = "prompt"
    second_texts: Sequence[int] = ()  # position of the first token of type 1 in each of the prompts, 0: it has none
    images: Sequence[Image] = ()  # of the only prompt, a text with a placeholder for each


@dataclass(frozen=True)
class ToolUse:
    """The tools of a request, and the tools that the answer calls."""

    tools: tuple[Tool, ...]
    choice: Literal["auto", "none", "required"] = "auto"
    allowed: tuple[str, ...] = ()  # the names of the tools that may be called; empty: all
    parallel: bool = True  # an answer may have several calls

    @property
    def offered(self) -> tuple[Tool, ...]:
        """The tools that the model sees."""
        return () if self.choice == "none" else self.tools

    @property
    def callable(self) -> tuple[Tool, ...]:
        """The tools that the answer may call."""
        return tuple(tool for tool in self.offered if not self.allowed or tool.name in self.allowed)

    @cached_property
    def characters(self) -> int:
        """The length of the tool descriptions. For large schemas, the first call is too slow for the event loop."""
        return sum(len(tool.name) + len(tool.description) + _length(tool.parameters) for tool in self.offered)


def _length(value: object) -> int:
    """Return the approximate length of a value as JSON."""
    if isinstance(value, Mapping):
        return sum(len(key) + 4 + _length(item) for key, item in value.items())
    if isinstance(value, list):
        return sum(2 + _length(item) for item in value)
    return len(value) if isinstance(value, str) else 4


def effort_arguments(effort: str | None) -> dict[str, Any]:
    """Return the chat template variables that set the thinking effort; a template uses one of them, or none."""
    if effort is None:
        return {}
    if effort == "none":
        return {"enable_thinking": False, "thinking": False}
    return {"reasoning_effort": "xhigh" if effort == "max" else effort}


@dataclass(frozen=True)
class Reasoning:
    """The client's settings for the model's reasoning before an answer, where the model has one."""

    include: bool = True  # whether the reasoning is in the answer
    separate: bool = True  # whether the reasoning is separate from the answer's text
    max_tokens: int | None = None  # length at which the reasoning is closed


@dataclass(frozen=True)
class Constrained:
    """The constraint of an answer."""

    constraint: Constraint
    param: str  # the field to blame in an error


@dataclass(frozen=True)
class Asked:
    """A request for text."""

    input: Chat | Texts
    sampling: Sampling
    model: str | None = None  # None: the served model
    lora: str | None = None  # name of an adapter, where `model` names none
    max_tokens: int | None = None  # 0 scores the prompt only
    default_max_tokens: int | None = None  # None: all that fit
    logprobs: int = -1  # of the output's tokens, as in `SamplingParams`
    prompt_logprobs: bool = False  # also of the prompt's tokens
    token_ids_logprob: Sequence[int] = ()  # tokens whose log-probabilities are returned at each position of the output
    pool: VectorForm | None = None  # the form of the prompts' embeddings, which are returned in place of text
    tools: ToolUse | None = None
    reasoning: Reasoning = field(default_factory=Reasoning)
    constrained: Constrained | None = None
    prediction: str = ""  # the answer that the client expects
    priority: int = 0  # as in the engine's `Request`
    resumed: Sequence[int] = ()  # tokens that the only answer begins with


@dataclass(frozen=True)
class Prompt:
    """A prompt as the model reads it."""

    tokens: list[int]
    text: str = ""  # the prompt in an answer that echoes it; for a conversation, the rendered template
    hidden: frozenset[int] = frozenset()  # tokens that are not in `text`
    prediction: Sequence[int] = ()  # tokens of the predicted answer
    second_text: int = 0  # position of its first token of type 1; 0: it has none
    images: tuple[PlacedTile, ...] = ()
    left_out: Sequence[Problem] = ()  # images that texts replace


def total_tokens(prompts: Sequence[Prompt]) -> int:
    """Return the number of tokens of all prompts; each prompt counts once, whatever `n` is."""
    return sum(len(prompt.tokens) for prompt in prompts)
