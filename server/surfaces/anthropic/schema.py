"""The bodies of POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from typing import Annotated, Literal

from numaserve.server.generation.asked import Asked, Chat, Constrained, Reasoning, ToolUse, effort_arguments
from numaserve.server.generation.constraint.answer_format import AnswerFormat, constrained_to
from numaserve.server.generation.conversation.turns import text_of, with_system
from numaserve.server.generation.token_choice import Sampling
from numaserve.server.http.fields.types import (
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
from numaserve.server.surfaces.anthropic.blocks import TextBlock, Texts
from numaserve.server.surfaces.anthropic.conversation import Messages
from numaserve.server.surfaces.anthropic.tools_schema import ToolChoice, Tools
from numaserve.server.surfaces.tool_fields import tool_use
from pydantic import Field, model_validator

_BILLING = "x-anthropic-billing-header:"


def _instructions(content: str | list[TextBlock]) -> str:
    """Return the text of `system`, without the billing header that Claude Code adds."""
    if isinstance(content, str):
        return content.partition("\n")[2] if content.startswith(_BILLING) else content
    return text_of([block for block in content if not block.text.startswith(_BILLING)])


class Thinking(Strict):
    """The settings of thinking before the response."""

    type: Literal["enabled", "adaptive", "between_tools", "disabled"]
    """Mode of thinking. `adaptive` and `between_tools` have the same effect as `enabled`."""
    budget_tokens: Annotated[int, Field(ge=1, le=MAX_INT)] | None = None
    """Maximum number of thinking tokens; the server then closes the thinking."""
    display: Literal["summarized", "updates", "omitted"] | None = None
    """`omitted` leaves the thinking out of the response. Any other value includes the full thinking: the server never
    summarizes it."""


class OutputConfig(Strict):
    """Settings of the response."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    """Amount of thinking, for models whose chat template supports it. `max` has the same effect as `xhigh`."""
    format: AnswerFormat | None = None
    """Format of the response text: `text`, `json_object`, or `json_schema` with a `schema`."""


class RequestMetadata(Strict):
    """Metadata of a request."""

    user_id: ShortText | None = None
    """No effect."""


class CountTokensRequest(Strict):
    """The body of POST /v1/messages/count_tokens."""

    model: ShortText | None = None
    """Name of the served model; any other name returns status 404."""
    messages: Messages
    """Conversation so far; the last message must not be the assistant's."""
    system: Annotated[str, made_of(Texts, _instructions)] | None = None
    """Instructions: a string or a list of text blocks. The server drops a block, or the first line of a string, that
    begins with `x-anthropic-billing-header:`. This header changes with each conversation and would prevent matches in
    the prefix cache."""
    thinking: Thinking | None = None
    """Settings of the thinking before the response, for models that can think; disabled unless set."""
    tools: Tools | None = None
    """Functions that the model can call."""
    tool_choice: ToolChoice | None = None
    """Rule that allows, requires or forbids tool calls; `auto` unless set."""
    output_config: OutputConfig | None = None
    """Settings of the response."""
    output_format: AnswerFormat | None = None
    """Older name of `output_config.format`."""

    @model_validator(mode="after")
    def _fields_fit_together(self) -> CountTokensRequest:
        if self.messages.messages[-1]["role"] == "assistant":
            raise conflict(
                "messages", "assistant message prefill is not supported; end with a message of the role 'user'"
            )
        if self.tool_choice is not None:
            self.tool_choice.meant.check(self.tools or (), "tool_choice")
        if self.output_format is not None and self.output_config is not None and self.output_config.format is not None:
            message = "'output_format' is the older name of 'output_config.format'; set only one of them"
            raise conflict("output_format", message)
        return self

    @property
    def thinks(self) -> bool:
        """Whether the request asks for a thought."""
        return self.thinking is not None and self.thinking.type != "disabled"

    def chat(self) -> Chat:
        """Return the conversation to continue."""
        # Templates use one of these variables, or none.
        arguments: dict[str, object] = {"enable_thinking": self.thinks, "thinking": self.thinks}
        effort = None if self.output_config is None else self.output_config.effort
        return Chat(with_system(self.system, self.messages), arguments | effort_arguments(effort))

    def tool_use(self) -> ToolUse | None:
        """Return the tools, and the rule for calling them."""
        return tool_use(self.tools or (), None if self.tool_choice is None else self.tool_choice.meant)


class MessagesRequest(CountTokensRequest):
    """The body of POST /v1/messages."""

    max_tokens: Annotated[int, Field(ge=1, le=MAX_INT)]
    """Maximum number of tokens to generate; fewer if the context length leaves less space."""
    stop_sequences: StopStrings | None = None
    """Strings that end the response; they are not part of the response."""
    stream: bool | None = None
    """Stream the response as server-sent events."""
    temperature: Annotated[float, Field(ge=0, le=2), no_overflow] | None = None
    """Sampling temperature; 0 is greedy; 1 unless set."""
    top_p: Annotated[float, Field(ge=0, le=1), no_overflow] | None = None
    """Sample from the most likely tokens up to this total probability. 0 always takes the most likely token; 1 unless
    set."""
    top_k: Annotated[int, Field(ge=0, le=MAX_INT)] | None = None
    """Number of most likely tokens to sample from; 0, the default, samples from all tokens."""
    metadata: RequestMetadata | None = None
    """No effect."""
    cache_control: Unused = None

    service_tier: Annotated[Neutral, neutral("auto", "standard_only")] = None
    container: Annotated[Neutral, neutral()] = None
    mcp_servers: Annotated[Neutral, neutral([])] = None

    def asked(self) -> Asked:
        """Return the request in the form that all APIs share."""
        given = {"temperature": self.temperature, "top_p": self.top_p, "top_k": self.top_k}
        return Asked(
            self.chat(),
            Sampling(**given, stop=self.stop_sequences or ()),  # type: ignore[arg-type]
            model=self.model,
            # A default and no demand: clients ask for the maximum of the largest models.
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
            return Reasoning(include=False)  # the model may think even so
        return Reasoning(include=thinking.display != "omitted", max_tokens=thinking.budget_tokens)
