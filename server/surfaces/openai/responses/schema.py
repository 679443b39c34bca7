"""The body of POST /v1/responses."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from numaserve.server.generation.asked import Asked, Chat, ToolUse, effort_arguments
from numaserve.server.generation.constraint.answer_format import AnswerFormat, constrained_to
from numaserve.server.generation.conversation.messages import Conversation
from numaserve.server.generation.conversation.turns import with_system
from numaserve.server.generation.token_choice import Sampling
from numaserve.server.http.fields.types import (
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
from numaserve.server.surfaces.openai.responses.items import Input
from numaserve.server.surfaces.openai.responses.tools_schema import ResponseToolChoice, ResponseTools
from numaserve.server.surfaces.tool_fields import tool_use
from pydantic import Field, model_validator

_LOGPROBS = "message.output_text.logprobs"
# The other values concern tools that the server does not have, and encrypted thoughts, which it never sends.
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
    """Settings of the model's reasoning."""

    effort: Effort | None = None
    """Amount of reasoning, for models whose chat template supports it. `none` turns reasoning off if the model supports
    that; `max` has the same effect as `xhigh`."""
    summary: Literal["auto", "concise", "detailed"] | None = None
    """No effect: the response contains the full reasoning."""
    generate_summary: Unused = None


class TextOptions(Strict):
    """Settings of the response text."""

    format: AnswerFormat | None = None
    """Format of the text: `text`, `json_object`, or `json_schema` with a `schema`."""
    verbosity: Verbosity | None = None
    """No effect."""


class ResponseStreamOptions(Strict):
    """Settings of a stream."""

    include_obfuscation: bool | None = None
    """No effect: the server does not pad events against traffic analysis."""


class InputTokensRequest(Strict):
    """The body of POST /v1/responses/input_tokens."""

    model: ShortText | None = None
    """Name of the served model; any other name returns status 404."""
    input: Input
    """Input as a string or a list of items: messages, `function_call`, `function_call_output`, `reasoning`, and
    `item_reference` to an item of a stored response."""
    instructions: Text | None = None
    """Instructions for this response only; they precede the conversation."""
    previous_response_id: ShortText | None = None
    """Id of the stored response that the input continues."""
    tools: ResponseTools | None = None
    """Functions that the model can call, including the functions of a `namespace`; the server ignores tools of other
    types."""
    tool_choice: ResponseToolChoice | None = None
    """`none`, `auto`, `required`, a function, or `allowed_tools`; `auto` unless set."""
    parallel_tool_calls: bool | None = None
    """Allow several tool calls in one response; true unless set."""
    reasoning: ReasoningOptions | None = None
    """Settings of the model's reasoning."""
    text: TextOptions | None = None
    """Settings of the response text."""
    truncation: Literal["auto", "disabled"] | None = None
    """No effect: the server rejects inputs that exceed the context length."""
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
        """Return the conversation to continue."""
        effort = None if self.reasoning is None else self.reasoning.effort
        return Chat(with_system(self.instructions, conversation), effort_arguments(effort), param="input")

    def tool_use(self) -> ToolUse | None:
        """Return the tools, and the rule for calling them."""
        return tool_use(self._functions, self.tool_choice, parallel=self.parallel_tool_calls is not False)


class ResponsesRequest(InputTokensRequest):
    """The body of POST /v1/responses."""

    store: bool | None = None
    """Store the response for later requests; true unless set."""
    max_output_tokens: Annotated[int, Field(ge=1, le=MAX_INT)] | None = None
    """Maximum number of tokens to generate, including reasoning tokens; unless set, only the context length limits the
    response."""
    temperature: Annotated[float, Field(ge=0, le=2), no_overflow] | None = None
    """Sampling temperature; 0 is greedy; 1 unless set."""
    top_p: Annotated[float, Field(ge=0, le=1), no_overflow] | None = None
    """Sample from the most likely tokens up to this total probability. 0 always takes the most likely token; 1 unless
    set."""
    stream: bool | None = None
    """Stream the response as server-sent events."""
    stream_options: ResponseStreamOptions | None = None
    """Settings of a stream."""
    metadata: Annotated[dict[ShortText, ShortText], Field(max_length=MAX_METADATA)] | None = None
    """Metadata to return with the response."""
    include: Annotated[list[Includable], Field(max_length=16)] | None = None
    """`message.output_text.logprobs` returns the log-probabilities of the text tokens. The other values have no effect:
    the server never encrypts reasoning and runs no tools."""
    top_logprobs: TopLogprobs | None = None
    """Number of most likely tokens to return at each position of a text; values of 1 or more include
    log-probabilities."""
    priority: Priority | None = None
    """Extension: priority among the client's own requests; lower numbers start first; 0 unless set."""

    max_tool_calls: Annotated[int, Field(ge=1, le=MAX_INT)] | None = None
    """No effect: the limit applies to tools that a server runs, and this server runs none."""
    user: ShortText | None = None
    """No effect."""
    safety_identifier: ShortText | None = None
    """No effect."""
    prompt_cache_key: ShortText | None = None
    """No effect."""
    prompt_cache_retention: ShortText | None = None
    """No effect."""
    service_tier: ShortText | None = None
    """No effect: the server has a single service tier."""

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
        """The number of requested log-probabilities, as in `SamplingParams`."""
        included = _LOGPROBS in (self.include or ()) or bool(self.top_logprobs)
        return self.top_logprobs or 0 if included else -1

    def asked(self, conversation: Conversation) -> Asked:
        """Return the request in the form that all APIs share."""
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
