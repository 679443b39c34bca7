"""The bodies of POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from typing import Annotated, Literal

from numaserve.server.api.anthropic.blocks import Texts, text_of
from numaserve.server.api.anthropic.conversation import Messages, with_system
from numaserve.server.api.fields import (
    MAX_INT,
    Data,
    Neutral,
    ShortText,
    StopStrings,
    Strict,
    Text,
    Unused,
    conflict,
    made_of,
    neutral,
    no_overflow,
)
from numaserve.server.api.generation.asked import Asked, Chat
from numaserve.server.api.sampling import Sampling
from pydantic import Field, model_validator

MAX_TOOLS = 1024


class Thinking(Strict):
    """Whether the model thinks before it answers."""

    type: Literal["enabled", "adaptive", "disabled"]
    """`disabled` asks the template for no thought, the others for one."""
    budget_tokens: Annotated[int, Field(ge=1, le=MAX_INT)] | None = None
    """Without effect: a thought ends where the model ends it."""
    display: Unused = None


class InputTool(Strict):
    """A tool that the model may call."""

    name: ShortText
    description: Text | None = None
    input_schema: Data
    type: Literal["custom"] | None = None
    cache_control: Unused = None


class ToolChoice(Strict):
    """Which of the tools are called."""

    type: Literal["auto", "any", "tool", "none"]
    name: ShortText | None = None
    disable_parallel_tool_use: bool | None = None


class RequestMetadata(Strict):
    """What is said about a request."""

    user_id: ShortText | None = None
    """Without effect."""


InputTools = Annotated[list[InputTool], Field(max_length=MAX_TOOLS)]


def _whether_any(tools: list[InputTool]) -> list[dict[str, object]]:
    # Nothing else is asked of them, and they may be large.
    return [{}] if tools else []


class CountTokensRequest(Strict):
    """The body of POST /v1/messages/count_tokens."""

    model: ShortText | None = None
    """A served name; another one is a 404."""
    messages: Messages
    """The turns so far, which end with one of the user."""
    system: Annotated[str, made_of(Texts, text_of)] | None = None
    """What the model is told first: a text, or a list of blocks that are text."""
    thinking: Thinking | None = None
    """Whether to think first; the model's own way unless set."""
    tools: Annotated[list[dict[str, object]], made_of(InputTools, _whether_any)] | None = None
    """Not supported; taken where `tool_choice` is `none`."""
    tool_choice: ToolChoice | None = None
    """Not supported but for the type `none`."""

    @model_validator(mode="after")
    def _fields_fit_together(self) -> CountTokensRequest:
        if self.tools and (self.tool_choice is None or self.tool_choice.type != "none"):
            raise conflict("tools", "'tools' are not supported by this server; set the type of 'tool_choice' to 'none'")
        if self.messages.messages[-1]["role"] == "assistant":
            raise conflict("messages", "the last message must be one of the user: answers are not begun for the model")
        return self

    def chat(self) -> Chat:
        """The conversation, to be continued."""
        thinks = None if self.thinking is None else self.thinking.type != "disabled"
        arguments = {} if thinks is None else {"enable_thinking": thinks}
        return Chat(with_system(self.system, self.messages), arguments)


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
    """1 unless set."""
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
        )
