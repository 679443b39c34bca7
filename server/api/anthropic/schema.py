"""The bodies of POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from typing import Annotated, Literal

from numaserve.server.api.answer_format import AnswerFormat, constrained_to
from numaserve.server.api.anthropic.blocks import TextBlock, Texts
from numaserve.server.api.anthropic.conversation import Messages
from numaserve.server.api.anthropic.tools_schema import ToolChoice, Tools
from numaserve.server.api.fields import (
    MAX_INT,
    Neutral,
    ShortText,
    StopStrings,
    Strict,
    Unused,
    conflict,
    made_of,
    neutral,
    no_overflow,
)
from numaserve.server.api.generation.asked import Asked, Chat, Constrained, Reasoning, ToolUse, effort_arguments
from numaserve.server.api.sampling import Sampling
from numaserve.server.api.tool_fields import tool_use
from numaserve.server.api.turns import text_of, with_system
from pydantic import Field, model_validator

_BILLING = "x-anthropic-billing-header:"


def _instructions(content: str | list[TextBlock]) -> str:
    """The text of `system`, without the billing header that Claude Code puts there."""
    if isinstance(content, str):
        return content.partition("\n")[2] if content.startswith(_BILLING) else content
    return text_of([block for block in content if not block.text.startswith(_BILLING)])


class Thinking(Strict):
    """Whether the model thinks before it answers."""

    type: Literal["enabled", "adaptive", "between_tools", "disabled"]
    """Whether it does; `adaptive` and `between_tools` are `enabled` here."""
    budget_tokens: Annotated[int, Field(ge=1, le=MAX_INT)] | None = None
    """Tokens after which the thought is closed."""
    display: Literal["summarized", "updates", "omitted"] | None = None
    """Whether the thought is in the answer, as it is: it is never summarized."""


class OutputConfig(Strict):
    """How the model answers."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    """How long the model thinks, where its template knows that; `max` is `xhigh` here."""
    format: AnswerFormat | None = None
    """`json_schema` with a `schema`, which the answer's text then fits."""


class RequestMetadata(Strict):
    """What is said about a request."""

    user_id: ShortText | None = None
    """Without effect."""


class CountTokensRequest(Strict):
    """The body of POST /v1/messages/count_tokens."""

    model: ShortText | None = None
    """A served name; another one is a 404."""
    messages: Messages
    """The turns so far, which end with one of the user."""
    system: Annotated[str, made_of(Texts, _instructions)] | None = None
    """Instructions: a text, or a list of text blocks. A block that begins with `x-anthropic-billing-header:` is left
    out, and so is such a first line of a text. It changes with each conversation, and cached prefixes would not
    match."""
    thinking: Thinking | None = None
    """Whether the model thinks before it answers, where it can; disabled unless set."""
    tools: Tools | None = None
    """Functions that the model may call."""
    tool_choice: ToolChoice | None = None
    """Which of them an answer calls; `auto` unless set."""
    output_config: OutputConfig | None = None
    """How the model answers."""
    output_format: AnswerFormat | None = None
    """The older `output_config.format`."""

    @model_validator(mode="after")
    def _fields_fit_together(self) -> CountTokensRequest:
        if self.messages.messages[-1]["role"] == "assistant":
            raise conflict(
                "messages", "assistant message prefill is not supported; the last message must have the role 'user'"
            )
        if self.tool_choice is not None:
            self.tool_choice.meant.check(self.tools or (), "tool_choice")
        if self.output_format is not None and self.output_config is not None and self.output_config.format is not None:
            message = "'output_format' is the older name of 'output_config.format'; set only one of them"
            raise conflict("output_format", message)
        return self

    @property
    def thinks(self) -> bool:
        """Whether a thought is asked for."""
        return self.thinking is not None and self.thinking.type != "disabled"

    def chat(self) -> Chat:
        """The conversation, to be continued."""
        # Templates have one of these variables, or none.
        arguments: dict[str, object] = {"enable_thinking": self.thinks, "thinking": self.thinks}
        effort = None if self.output_config is None else self.output_config.effort
        return Chat(with_system(self.system, self.messages), arguments | effort_arguments(effort))

    def tool_use(self) -> ToolUse | None:
        """The tools, and which of them the answer calls."""
        return tool_use(self.tools or (), None if self.tool_choice is None else self.tool_choice.meant)


class MessagesRequest(CountTokensRequest):
    """The body of POST /v1/messages."""

    max_tokens: Annotated[int, Field(ge=1, le=MAX_INT)]
    """Tokens to generate at most; fewer where the context has no room for them."""
    stop_sequences: StopStrings | None = None
    """Texts that end the answer and are not part of it."""
    stream: bool | None = None
    """Answer in events, as the tokens come."""
    temperature: Annotated[float, Field(ge=0, le=2), no_overflow] | None = None
    """0 is greedy; 1 unless set."""
    top_p: Annotated[float, Field(ge=0, le=1), no_overflow] | None = None
    """Sample from the likeliest tokens up to this total probability; 0 takes the likeliest alone; 1 unless set."""
    top_k: Annotated[int, Field(ge=0, le=MAX_INT)] | None = None
    """Sample from so many tokens; 0, the default, from all."""
    metadata: RequestMetadata | None = None
    """Without effect."""
    cache_control: Unused = None

    service_tier: Annotated[Neutral, neutral("auto", "standard_only")] = None
    container: Annotated[Neutral, neutral()] = None
    mcp_servers: Annotated[Neutral, neutral([])] = None

    def asked(self) -> Asked:
        """What the client asks for."""
        given = {"temperature": self.temperature, "top_p": self.top_p, "top_k": self.top_k}
        return Asked(
            self.chat(),
            Sampling(**given, stop=self.stop_sequences or ()),  # type: ignore[arg-type]
            model=self.model,
            # A default and no demand: clients ask for what the largest models may write.
            default_max_tokens=self.max_tokens,
            tools=self.tool_use(),
            reasoning=self._reasoning(),
            constrained=self._constrained(),
        )

    def _constrained(self) -> Constrained | None:
        if self.output_format is not None:
            return constrained_to(self.output_format, "output_format")
        return None if self.output_config is None else constrained_to(self.output_config.format, "output_config.format")

    def _reasoning(self) -> Reasoning:
        thinking = self.thinking
        if thinking is None or not self.thinks:
            return Reasoning(include=False)  # of a model that thinks all the same
        return Reasoning(include=thinking.display != "omitted", max_tokens=thinking.budget_tokens)
