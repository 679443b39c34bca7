"""The body of POST /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Literal

from numaserve.server.generation.asked import Asked, Chat, Reasoning, ToolUse, effort_arguments
from numaserve.server.generation.conversation.content import texts_of
from numaserve.server.generation.conversation.turns import text_of
from numaserve.server.http.fields.types import (
    MAX_INT,
    Effort,
    Neutral,
    ShortText,
    Strict,
    TemplateArguments,
    TopLogprobs,
    Verbosity,
    conflict,
    neutral,
)
from numaserve.server.surfaces.openai.chats.messages import Messages, TextContent
from numaserve.server.surfaces.openai.chats.tools_schema import FunctionChoice, Functions, ToolChoice, Tools
from numaserve.server.surfaces.openai.constraint_fields import ConstraintFields
from numaserve.server.surfaces.openai.sampling_fields import SamplingFields
from numaserve.server.surfaces.tool_fields import tool_use
from pydantic import Field, model_validator


class Prediction(Strict):
    """A text that is expected to match most of the response."""

    type: Literal["content"]
    content: TextContent


class ChatRequest(ConstraintFields, SamplingFields):
    """The body of POST /v1/chat/completions."""

    messages: Messages
    """Conversation so far."""
    max_tokens: Annotated[int, Field(ge=1, le=MAX_INT)] | None = None
    """Maximum number of tokens to generate; unless set, only the context length limits the response."""
    max_completion_tokens: Annotated[int, Field(ge=1, le=MAX_INT)] | None = None
    """OpenAI's newer name for `max_tokens`."""
    logprobs: bool | None = None
    """Return the log-probabilities of the generated tokens."""
    top_logprobs: TopLogprobs | None = None
    """Number of most likely tokens to return at each position; needs `logprobs`."""
    chat_template_kwargs: TemplateArguments | None = None
    """Additional variables for the model's chat template, such as `enable_thinking`."""

    tools: Tools | None = None
    """Functions that the model can call; the server ignores tools of other types."""
    tool_choice: ToolChoice | None = None
    """`auto`, the default: the model decides. `none`: no call. `required`: at least one call. A function: one call of
    that function. `allowed_tools`: only calls of the listed tools."""
    parallel_tool_calls: bool | None = None
    """Allow several tool calls in one response; true unless set."""
    functions: Functions | None = None
    """OpenAI's older form of `tools`; the response then uses `function_call`."""
    function_call: FunctionChoice | None = None
    """OpenAI's older form of `tool_choice`."""
    reasoning_effort: Effort | None = None
    """Amount of reasoning, for models whose chat template supports it. `none` turns reasoning off if the model supports
    that; `max` has the same effect as `xhigh`."""
    include_reasoning: bool | None = None
    """Return the reasoning as `reasoning_content`; true unless set."""
    max_thinking_tokens: Annotated[int, Field(ge=0, le=MAX_INT)] | None = None
    """Maximum number of reasoning tokens; the server then closes the reasoning. Unless set, only the context length
    limits the reasoning."""
    separate_reasoning: bool | None = None
    """Extension of SGLang: false leaves the reasoning and its markers in the text."""
    add_generation_prompt: bool | None = None
    """Extension: let the chat template begin the response; true unless set."""
    continue_final_message: bool | None = None
    """Extension: continue the last message instead of starting a new one; not with `add_generation_prompt`."""
    echo: bool | None = None
    """Extension: begin the response with the last message, if that is the assistant's."""
    prediction: Prediction | None = None
    """Predicted output, such as a text to edit; the response is faster where the prediction matches."""
    modalities: Annotated[Neutral, neutral(["text"])] = None
    audio: Annotated[Neutral, neutral()] = None
    verbosity: Verbosity | None = None
    """No effect."""
    service_tier: ShortText | None = None
    """No effect: the server has a single service tier."""
    store: bool | None = None
    """No effect: the server does not store chat completions."""
    web_search_options: Annotated[Neutral, neutral()] = None
    add_special_tokens: Annotated[Neutral, neutral(False)] = None  # the template writes them
    best_of: Annotated[Neutral, neutral(1)] = None
    chat_template: Annotated[Neutral, neutral()] = None
    documents: Annotated[Neutral, neutral([])] = None
    mm_processor_kwargs: Annotated[Neutral, neutral({})] = None

    @model_validator(mode="after")
    def _fields_fit_together(self) -> ChatRequest:
        self._check_tools()
        if self.continue_final_message and self.add_generation_prompt:
            message = "'continue_final_message' and 'add_generation_prompt' cannot both be true; set only one of them"
            raise conflict("continue_final_message", message)
        if self.top_logprobs is not None and not self.logprobs:
            raise conflict("top_logprobs", "'top_logprobs' needs 'logprobs': true")
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise conflict("max_tokens", "'max_tokens' and 'max_completion_tokens' differ; set only one of them")
        return self

    def asked(self) -> Asked:
        """Return the request in the form that all APIs share."""
        separate, include = self.separate_reasoning is not False, self.include_reasoning is not False
        return Asked(
            self._chat(),
            self.sampling(),
            model=self.model,
            lora=self.lora_path,
            max_tokens=self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens,
            logprobs=self.most_logprobs((self.top_logprobs or 0) if self.logprobs else None),
            prompt_logprobs=self.prompt_logprobs is not None,
            tools=self._tool_use(),
            reasoning=Reasoning(include=include, separate=separate, max_tokens=self.max_thinking_tokens),
            constrained=self.constrained(),
            prediction="" if self.prediction is None else text_of(self.prediction.content),
            priority=self.priority or 0,
            resumed=self.resume_token_ids or (),
        )

    @property
    def echoed(self) -> str:
        """The text that the response begins with."""
        last = self.messages.messages[-1]
        return "\n".join(texts_of(last["content"])) if self.echo and last["role"] == "assistant" else ""

    def _chat(self) -> Chat:
        open_ended = self.continue_final_message is True
        return Chat(
            self.messages,
            effort_arguments(self.reasoning_effort) | (self.chat_template_kwargs or {}),
            add_generation_prompt=self.add_generation_prompt is not False and not open_ended,
            continue_final=open_ended,
        )

    def _tool_use(self) -> ToolUse | None:
        if self.functions:
            return tool_use(self.functions, self.function_call, parallel=False)
        return tool_use(self.tools or [], self.tool_choice, parallel=self.parallel_tool_calls is not False)

    def _check_tools(self) -> None:
        if self.tools and self.functions:
            raise conflict("functions", "'functions' is the older name of 'tools'; set only one of them")
        if self.tool_choice is not None:
            self.tool_choice.check(self.tools or (), "tool_choice")
        if self.function_call is not None:
            self.function_call.check(self.functions or (), "function_call")
