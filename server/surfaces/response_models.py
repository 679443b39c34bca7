"""The formats of answers for the OpenAPI document; answers are written as plain data and not validated against them.

They follow OpenAI's reference for /v1, and vLLM's for /tokenize and /detokenize.
"""

from typing import Any, Literal

from pydantic import BaseModel, Field


class ErrorDetail(BaseModel):
    """The details of an error: `param` names the invalid field; `code` is machine-readable."""

    message: str
    type: str
    param: str | None
    code: str | None


class Error(BaseModel):
    """The body of every error response."""

    error: ErrorDetail


class PromptTokensDetails(BaseModel):
    """The number of prompt tokens that came from the cache."""

    cached_tokens: int


class CompletionTokensDetails(BaseModel):
    """The kinds of completion tokens. `completion_tokens` does not count the rejected tokens of a prediction."""

    reasoning_tokens: int
    accepted_prediction_tokens: int | None = None
    rejected_prediction_tokens: int | None = None


class TokenCounts(BaseModel):
    """Token counts of a stream so far."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Usage(TokenCounts):
    """Token counts of all choices; a prompt counts once."""

    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class TopLogprob(BaseModel):
    """A possible token and its log-probability. Its text is an escape such as ``\\xe2\\x82`` if its bytes are not a
    complete character."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    """A generated token and its log-probability."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    """The log-probabilities, with one entry per token."""

    content: list[TokenLogprob]
    refusal: None


class CalledFunction(BaseModel):
    """A function and its arguments as the text of a JSON object."""

    name: str
    arguments: str


class ToolCall(BaseModel):
    """A tool call of the model."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class AssistantMessage(BaseModel):
    """The message that the model generated. `content` is null if the message has tool calls and no text;
    `function_call` is for requests with `functions`."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCall] | None = None
    function_call: CalledFunction | None = None


FinishReason = Literal["stop", "length", "tool_calls", "function_call"]


class ChatChoice(BaseModel):
    """One of the `n` choices."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    token_ids: list[int] | None = None


class AnswerFrame(BaseModel):
    """The fields that an answer and all chunks of a stream have."""

    id: str
    created: int = Field(description="Unix time in seconds.")
    model: str
    system_fingerprint: str


class _Answer(AnswerFrame):
    usage: Usage


class ChatCompletion(_Answer):
    """The response of POST /v1/chat/completions."""

    object: Literal["chat.completion"]
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: list[dict[str, Any] | None] | None = None
    choices: list[ChatChoice]


class CompletionLogprobs(BaseModel):
    """The log-probabilities as columns with one entry per token. The first token of an echoed prompt has no
    log-probability."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(BaseModel):
    """A completion of a prompt; choice p * n + i is completion i of prompt p."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: list[dict[str, Any] | None] | None = None


class Completion(_Answer):
    """The response of POST /v1/completions."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]


class Embedding(BaseModel):
    """The embedding of an input, as numbers, in base64 or in bytes of bits."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | list[int] | str


class MultiVector(BaseModel):
    """The vectors of an input's tokens, each in the form of an embedding."""

    object: Literal["embedding"]
    index: int
    embeddings: list[list[float]] | list[list[int]] | list[str]


class PromptUsage(BaseModel):
    """The number of tokens in all inputs."""

    prompt_tokens: int
    total_tokens: int


class Embeddings(BaseModel):
    """The response of POST /v1/embeddings."""

    object: Literal["list"]
    data: list[Embedding] | list[MultiVector]
    model: str
    usage: PromptUsage


class Tokenized(BaseModel):
    """The response of POST /tokenize."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class Detokenized(BaseModel):
    """The response of POST /detokenize."""

    prompt: str
