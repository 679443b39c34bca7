"""The body of POST /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated

from numaserve.server.api.fields import MAX_INT, Neutral, Strict, TopLogprobs, conflict, neutral
from numaserve.server.api.generation.asked import Asked, Chat
from numaserve.server.api.openai.messages import Messages
from numaserve.server.api.openai.sampling_fields import SamplingFields
from pydantic import AfterValidator, Field, model_validator


def _whether_any(items: list[dict[str, object]]) -> list[dict[str, object]]:
    # Nothing else is asked of them, and they may be large.
    return [{}] if items else []


class TemplateArguments(Strict):
    """The arguments a request may pass to the chat template. The template itself is never the request's."""

    enable_thinking: bool | None = None
    """Whether the template asks the model to think first."""


class ChatRequest(SamplingFields):
    """The body of POST /v1/chat/completions."""

    messages: Messages
    """The turns so far."""
    max_tokens: Annotated[int, Field(ge=1, le=MAX_INT)] | None = None
    """Tokens to generate at most; all that fit unless set."""
    max_completion_tokens: Annotated[int, Field(ge=1, le=MAX_INT)] | None = None
    """OpenAI's newer name for `max_tokens`."""
    logprobs: bool | None = None
    """Give log-probabilities of the answer's tokens."""
    top_logprobs: TopLogprobs | None = None
    """And so many of the likeliest beside each; needs `logprobs`."""
    chat_template_kwargs: TemplateArguments | None = None
    """The arguments of the chat template that a request may set."""

    parallel_tool_calls: bool | None = None
    """Without effect where there are no tools."""
    tools: Annotated[list[dict[str, object]], AfterValidator(_whether_any)] | None = None
    """Not supported; taken where `tool_choice` is `none`."""
    tool_choice: Annotated[Neutral, neutral("none", "auto")] = None
    functions: Annotated[Neutral, neutral([])] = None
    function_call: Annotated[Neutral, neutral("none", "auto")] = None
    modalities: Annotated[Neutral, neutral(["text"])] = None
    audio: Annotated[Neutral, neutral()] = None
    prediction: Annotated[Neutral, neutral()] = None
    reasoning_effort: Annotated[Neutral, neutral()] = None
    verbosity: Annotated[Neutral, neutral("medium")] = None
    web_search_options: Annotated[Neutral, neutral()] = None
    service_tier: Annotated[Neutral, neutral("auto", "default")] = None
    store: Annotated[Neutral, neutral(False)] = None
    add_generation_prompt: Annotated[Neutral, neutral(True)] = None
    continue_final_message: Annotated[Neutral, neutral(False)] = None
    add_special_tokens: Annotated[Neutral, neutral(False)] = None  # the template writes them
    echo: Annotated[Neutral, neutral(False)] = None
    best_of: Annotated[Neutral, neutral(1)] = None
    chat_template: Annotated[Neutral, neutral()] = None
    documents: Annotated[Neutral, neutral([])] = None
    mm_processor_kwargs: Annotated[Neutral, neutral({})] = None

    @model_validator(mode="after")
    def _fields_fit_together(self) -> ChatRequest:
        if self.tools and self.tool_choice != "none":
            raise conflict("tools", "'tools' are not supported by this server; set 'tool_choice' to 'none'")
        if self.top_logprobs is not None and not self.logprobs:
            raise conflict("top_logprobs", "'top_logprobs' needs 'logprobs': true")
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise conflict("max_tokens", "'max_tokens' and 'max_completion_tokens' differ; set only one of them")
        return self

    def asked(self) -> Asked:
        """What the client asks for."""
        arguments = self.chat_template_kwargs
        return Asked(
            Chat(self.messages, {} if arguments is None else arguments.model_dump(exclude_none=True)),
            self.sampling(),
            model=self.model,
            max_tokens=self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens,
            logprobs=(self.top_logprobs or 0) if self.logprobs else -1,
        )
