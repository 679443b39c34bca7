"""The formats of Ollama's answers for the OpenAPI document."""

from typing import Any, Literal

from numaserve.server.surfaces.openapi import body_errors, errors
from numaserve.server.surfaces.response_models import TokenLogprob
from pydantic import BaseModel


class OllamaError(BaseModel):
    """The body of every error response."""

    error: str


class _Line(BaseModel):
    model: str
    created_at: str
    logprobs: list[TokenLogprob] | None = None


class _Answer(_Line):
    """An answer, or the last line of a stream; durations are in nanoseconds."""

    done: Literal[True]
    done_reason: Literal["stop", "length", "load"]
    total_duration: int | None = None
    load_duration: int | None = None
    prompt_eval_count: int | None = None
    prompt_eval_duration: int | None = None
    eval_count: int | None = None
    eval_duration: int | None = None


class AnswerMessage(BaseModel):
    """The message that the model generated."""

    role: Literal["assistant"]
    content: str
    thinking: str | None = None
    tool_calls: list[dict[str, Any]] | None = None


class ChatAnswer(_Answer):
    """The response of POST /api/chat, and the last line of its stream."""

    message: AnswerMessage


class ChatLine(_Line):
    """A line of the stream of POST /api/chat: the next piece of the message."""

    done: Literal[False]
    message: AnswerMessage


class _Response(BaseModel):
    response: str
    thinking: str | None = None


class GenerateAnswer(_Response, _Answer):
    """The response of POST /api/generate, and the last line of its stream."""


class GenerateLine(_Response, _Line):
    """A line of the stream of POST /api/generate: the next piece of the response."""

    done: Literal[False]


class EmbedAnswer(BaseModel):
    """The response of POST /api/embed; durations are in nanoseconds."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class EmbeddingsAnswer(BaseModel):
    """The response of POST /api/embeddings."""

    embedding: list[float]


class ModelDetails(BaseModel):
    """Details of a model's file and weights; unknown values are empty."""

    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class ListedModel(BaseModel):
    """A model name for requests. `digest` is the digest of the model's path; `size` is the model's memory in bytes."""

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: ModelDetails


class RunningModel(BaseModel):
    """A model name that requests can use while the server is ready."""

    name: str
    model: str
    size: int
    digest: str
    details: ModelDetails
    expires_at: str
    size_vram: int
    context_length: int


class ListedModels(BaseModel):
    """The response of GET /api/tags."""

    models: list[ListedModel]


class RunningModels(BaseModel):
    """The response of GET /api/ps."""

    models: list[RunningModel]


class ShownModel(BaseModel):
    """The response of POST /api/show."""

    modelfile: str
    parameters: str
    template: str
    details: ModelDetails
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str


class PullAnswer(BaseModel):
    """The response of POST /api/pull."""

    status: Literal["success"]


class ApiVersion(BaseModel):
    """The version of Ollama's API."""

    version: str


ERRORS = errors(model=OllamaError)
BODY_ERRORS = body_errors(OllamaError)
