"""The body of POST /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Literal

from numaserve.server.api.schemas import MAX_INT, Neutral, SamplingFields, Strict, Text, TopLogprobs, conflict, neutral
from pydantic import BeforeValidator, Field, StringConstraints, model_validator

_ROLES = {"developer": "system"}  # OpenAI's newer name for it; templates know the older one


def _join_text_parts(content: object) -> object:
    # One part a line, as vLLM and llama-server do it.
    if not isinstance(content, list):
        return content
    texts: list[str] = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text" or set(part) != {"type", "text"} or not isinstance(part["text"], str):
            raise ValueError('only parts {"type": "text", "text": "..."} are supported')
        texts.append(part["text"])
    if not texts:
        raise ValueError("the list of parts is empty")
    return "\n".join(texts)


class Message(Strict):
    """One message; fields that only tool calls, audio and refusals need are accepted empty, as clients echo them."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[Text, BeforeValidator(_join_text_parts)]
    name: Annotated[Text, StringConstraints(max_length=256)] | None = None
    refusal: Annotated[Neutral, neutral()] = None
    tool_calls: Annotated[Neutral, neutral([])] = None
    function_call: Annotated[Neutral, neutral()] = None
    audio: Annotated[Neutral, neutral()] = None
    annotations: Annotated[Neutral, neutral([])] = None

    def for_template(self) -> dict[str, object]:
        """What the chat template sees."""
        message: dict[str, object] = {"role": _ROLES.get(self.role, self.role), "content": self.content}
        return message if self.name is None else {**message, "name": self.name}


class TemplateArguments(Strict):
    """The arguments a request may pass to the chat template. The template itself is never the request's."""

    enable_thinking: bool | None = None


class ChatRequest(SamplingFields):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=65536)]
    max_tokens: Annotated[int, Field(ge=1, le=MAX_INT)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, le=MAX_INT)] | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    chat_template_kwargs: TemplateArguments | None = None

    parallel_tool_calls: bool | None = None  # without effect where there are no tools
    tools: list[dict[str, object]] | None = None
    tool_choice: Annotated[Neutral, neutral("none", "auto")] = None
    functions: Annotated[Neutral, neutral([])] = None
    function_call: Annotated[Neutral, neutral("none", "auto")] = None
    response_format: Annotated[Neutral, neutral({"type": "text"})] = None
    modalities: Annotated[Neutral, neutral(["text"])] = None
    audio: Annotated[Neutral, neutral()] = None
    prediction: Annotated[Neutral, neutral()] = None
    reasoning_effort: Annotated[Neutral, neutral()] = None
    verbosity: Annotated[Neutral, neutral("medium")] = None
    web_search_options: Annotated[Neutral, neutral()] = None
    service_tier: Annotated[Neutral, neutral("auto", "default")] = None
    store: Annotated[Neutral, neutral(False)] = None

    @model_validator(mode="after")
    def _fields_fit_together(self) -> ChatRequest:
        if self.tools and self.tool_choice != "none":
            raise conflict("tools", "'tools' are not supported by this server; set 'tool_choice' to 'none'")
        if self.top_logprobs is not None and not self.logprobs:
            raise conflict("top_logprobs", "'top_logprobs' needs 'logprobs': true")
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise conflict("max_tokens", "'max_tokens' and 'max_completion_tokens' differ; set only one of them")
        return self

    @property
    def output_limit(self) -> int | None:
        """How many tokens to generate at most, None for as many as fit."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
