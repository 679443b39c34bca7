"""The body of POST /v1/responses."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from numaserve.server.api.answer_format import AnswerFormat, constrained_to
from numaserve.server.api.conversation import Conversation
from numaserve.server.api.fields import (
    MAX_INT,
    MAX_METADATA,
    Effort,
    Neutral,
    Priority,
    ShortText,
    Strict,
    Text,
    TopLogprobs,
    Unused,
    Verbosity,
    neutral,
    no_overflow,
)
from numaserve.server.api.generation.asked import Asked, Chat, ToolUse, effort_arguments
from numaserve.server.api.openai.responses.items import Input
from numaserve.server.api.openai.responses.tools_schema import ResponseToolChoice, ResponseTools
from numaserve.server.api.sampling import Sampling
from numaserve.server.api.tool_fields import tool_use
from numaserve.server.api.turns import with_system
from pydantic import Field, model_validator

_LOGPROBS = "message.output_text.logprobs"
# The others are of tools that the server does not have, and of thoughts, which are never encrypted.
Includable = Literal[
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
]


class ReasoningOptions(Strict):
    """How the model thinks."""

    effort: Effort | None = None
    """How long, where its template knows that; `none`: not at all, where it can be turned off; `max` is `xhigh`."""
    summary: Literal["auto", "concise", "detailed"] | None = None
    """Without effect: the whole thought is in the answer."""
    generate_summary: Unused = None


class TextOptions(Strict):
    """What the text is like."""

    format: AnswerFormat | None = None
    """The type is `text`, `json_object`, or `json_schema` with a `schema` for the text."""
    verbosity: Verbosity | None = None
    """Without effect."""


class ResponseStreamOptions(Strict):
    """Settings of a stream."""

    include_obfuscation: bool | None = None
    """Without effect: events are not padded against traffic analysis."""


class InputTokensRequest(Strict):
    """The body of POST /v1/responses/input_tokens."""

    model: ShortText | None = None
    """A served name; another one is a 404."""
    input: Input
    """A text, or a list of items: messages, `function_call`, `function_call_output`, `reasoning`, and `item_reference`
    to those of stored answers."""
    instructions: Text | None = None
    """Instructions for this response alone; they precede the conversation."""
    previous_response_id: ShortText | None = None
    """The response that the input follows; it must have been stored."""
    tools: ResponseTools | None = None
    """Functions that the model may call, also those of a `namespace`; tools of other types are left out."""
    tool_choice: ResponseToolChoice | None = None
    """`none`, `auto`, `required`, a function, or `allowed_tools`; `auto` unless set."""
    parallel_tool_calls: bool | None = None
    """Whether an answer may have several calls; true unless set."""
    reasoning: ReasoningOptions | None = None
    """How the model thinks."""
    text: TextOptions | None = None
    """What the text is like."""
    truncation: Literal["auto", "disabled"] | None = None
    """Without effect: an input that does not fit is refused."""
    conversation: Annotated[Neutral, neutral()] = None

    @model_validator(mode="after")
    def _the_choice_is_among_the_tools(self) -> Self:
        if self.tool_choice is not None:
            self.tool_choice.check(self._functions, "tool_choice")
        return self

    @property
    def _functions(self) -> list[dict[str, Any]]:
        return [] if self.tools is None else self.tools.functions

    def chat(self, conversation: Conversation) -> Chat:
        """The conversation, to be continued."""
        effort = None if self.reasoning is None else self.reasoning.effort
        return Chat(with_system(self.instructions, conversation), effort_arguments(effort), param="input")

    def tool_use(self) -> ToolUse | None:
        """The tools, and which of them the answer calls."""
        return tool_use(self._functions, self.tool_choice, parallel=self.parallel_tool_calls is not False)


class ResponsesRequest(InputTokensRequest):
    """The body of POST /v1/responses."""

    store: bool | None = None
    """Whether the response is kept for later requests; true unless set."""
    max_output_tokens: Annotated[int, Field(ge=1, le=MAX_INT)] | None = None
    """Tokens to generate at most, those of the thought too; all that fit unless set."""
    temperature: Annotated[float, Field(ge=0, le=2), no_overflow] | None = None
    """0 is greedy; 1 unless set."""
    top_p: Annotated[float, Field(ge=0, le=1), no_overflow] | None = None
    """Sample from the likeliest tokens up to this total probability; 0 takes the likeliest alone; 1 unless set."""
    stream: bool | None = None
    """Answer in events, as the tokens come."""
    stream_options: ResponseStreamOptions | None = None
    """Settings of a stream."""
    metadata: Annotated[dict[ShortText, ShortText], Field(max_length=MAX_METADATA)] | None = None
    """Given back with the response."""
    include: Annotated[list[Includable], Field(max_length=16)] | None = None
    """`message.output_text.logprobs`: log-probabilities of the texts' tokens. The others are without effect: thoughts
    are never encrypted, and there are no tools of the server."""
    top_logprobs: TopLogprobs | None = None
    """How many of the likeliest tokens stand beside each token of a text; from 1 on log-probabilities are included."""
    priority: Priority | None = None
    """Extension: which of the client's own requests begins earlier: the one with the lower number; 0 unless set."""

    max_tool_calls: Annotated[int, Field(ge=1, le=MAX_INT)] | None = None
    """Without effect: it counts calls of the server's own tools."""
    user: ShortText | None = None
    """Without effect."""
    safety_identifier: ShortText | None = None
    """Without effect."""
    prompt_cache_key: ShortText | None = None
    """Without effect."""
    prompt_cache_retention: ShortText | None = None
    """Without effect."""
    service_tier: ShortText | None = None
    """Without effect: there is one tier."""

    background: Annotated[Neutral, neutral(False)] = None
    prompt: Annotated[Neutral, neutral()] = None
    context_management: Annotated[Neutral, neutral([])] = None
    moderation: Annotated[Neutral, neutral()] = None

    @property
    def text_format(self) -> dict[str, Any]:
        """The format of the answer's text."""
        return (self.text and self.text.format) or {"type": "text"}

    @property
    def logprobs(self) -> int:
        """The log-probabilities that are wanted, as in `SamplingParams`."""
        included = _LOGPROBS in (self.include or ()) or bool(self.top_logprobs)
        return self.top_logprobs or 0 if included else -1

    def asked(self, conversation: Conversation) -> Asked:
        """What the client asks for."""
        return Asked(
            self.chat(conversation),
            Sampling(temperature=self.temperature, top_p=self.top_p),
            model=self.model,
            max_tokens=self.max_output_tokens,
            logprobs=self.logprobs,
            tools=self.tool_use(),
            constrained=constrained_to(self.text_format, "text.format"),
            priority=self.priority or 0,
        )
