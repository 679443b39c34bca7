"""The formats of responses for the OpenAPI document, after OpenAI's reference of the Responses API."""

from typing import Any, Literal

from numaserve.server.surfaces.response_models import TokenLogprob
from pydantic import BaseModel

EndStatus = Literal["completed", "incomplete"]
ItemStatus = Literal["in_progress", EndStatus]


class ResponseText(BaseModel):
    """The text of a message."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[TokenLogprob]


class ResponseMessage(BaseModel):
    """A message that the model generated."""

    type: Literal["message"]
    id: str
    role: Literal["assistant"]
    content: list[ResponseText]
    status: ItemStatus


class ResponseThoughtText(BaseModel):
    """The text of a reasoning item."""

    type: Literal["reasoning_text"]
    text: str


class ResponseThought(BaseModel):
    """The thinking before a response."""

    type: Literal["reasoning"]
    id: str
    summary: list[Any]
    content: list[ResponseThoughtText]
    status: ItemStatus


class ResponseCall(BaseModel):
    """A tool call of the model; `arguments` is valid JSON unless the model generated invalid JSON."""

    type: Literal["function_call"]
    id: str
    call_id: str
    name: str
    namespace: str | None = None
    arguments: str
    status: ItemStatus


class ResponseInputDetails(BaseModel):
    """The number of input tokens that came from the cache; `cache_write_tokens` is always 0."""

    cached_tokens: int
    cache_write_tokens: int


class ResponseOutputDetails(BaseModel):
    """The number of output tokens by use."""

    reasoning_tokens: int


class ResponseUsage(BaseModel):
    """The token counts of a response."""

    input_tokens: int
    input_tokens_details: ResponseInputDetails
    output_tokens: int
    output_tokens_details: ResponseOutputDetails
    total_tokens: int


class ResponseIncompleteDetails(BaseModel):
    """The reason why the response is incomplete."""

    reason: Literal["max_output_tokens"]


class ResponseError(BaseModel):
    """The reason why a generation failed."""

    code: str
    message: str


Item = ResponseMessage | ResponseThought | ResponseCall


class _Response(BaseModel):
    id: str
    object: Literal["response"]
    created_at: int
    model: str
    output: list[Item]
    background: Literal[False]
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: dict[str, str | None]
    service_tier: Literal["default"]
    store: bool
    temperature: float | None
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float | None
    truncation: Literal["disabled"]
    user: str | None


class ModelResponse(_Response):
    """A response; fields copied from the request keep the values that the client sent."""

    status: EndStatus
    error: None
    incomplete_details: ResponseIncompleteDetails | None
    usage: ResponseUsage


class BegunResponse(_Response):
    """A response at the beginning of a stream."""

    status: Literal["in_progress"]
    error: None
    incomplete_details: None
    usage: None


class FailedResponse(_Response):
    """A response whose generation failed during a stream."""

    status: Literal["failed"]
    error: ResponseError
    incomplete_details: None
    usage: None


class InputTokens(BaseModel):
    """The response of POST /v1/responses/input_tokens."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class DeletedResponse(BaseModel):
    """The response of DELETE /v1/responses/{response_id}."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


class ItemList(BaseModel):
    """The response of GET /v1/responses/{response_id}/input_items: each item as the client sent it, with an id."""

    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool
