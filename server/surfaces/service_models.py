"""The formats of the server's reports on itself, for the OpenAPI document; the server does not validate against them.

They follow OpenAI's and Anthropic's references for /v1/models, SGLang's for /v1/loads and /model_info, and vLLM's for
/load and /tokenizer_info.
"""

from typing import Any, Literal

from numaserve.server.config.tasks import Task
from numaserve.server.engine.overview import Overview
from numaserve.server.http.auth.keys import PrefixSharing
from pydantic import BaseModel, ConfigDict


class ListedImageLimits(BaseModel):
    """The limits of the images of a request: their number, and the bytes of an image file and of the whole body."""

    max_images: int
    max_file_bytes: int
    max_body_bytes: int


class Model(BaseModel):
    """A model name that requests can use."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: str | None
    max_model_len: int
    input_modalities: list[Literal["text", "image"]]
    image_limits: ListedImageLimits | None


class ModelList(BaseModel):
    """The model names that requests can use."""

    object: Literal["list"]
    data: list[Model]


class AnthropicModel(BaseModel):
    """A model name that requests can use, in Anthropic's format."""

    type: Literal["model"]
    id: str
    display_name: str
    created_at: str


class AnthropicModelList(BaseModel):
    """The model names that requests can use, in Anthropic's format."""

    data: list[AnthropicModel]
    has_more: Literal[False]
    first_id: str
    last_id: str


class Status(BaseModel):
    """The response of a health probe."""

    status: Literal["ok"]


class Version(BaseModel):
    """The version of numaserve."""

    version: str


class ServerInfo(BaseModel):
    """The configuration, the workers and the counters; later versions add fields."""

    model_config = ConfigDict(extra="allow")

    version: str
    model_path: str
    served_model_name: str
    served_model_names: list[str]
    prefix_sharing: PrefixSharing


class RankCosts(BaseModel):
    """The cost of a rank's steps since the rank was loaded, in total and by operation."""

    rank: int
    steps: int
    tokens: int
    native_ns: int
    operations: list[dict[str, Any]]


class Machine(BaseModel):
    """The state of the engine and the cost of its steps, at one moment."""

    version: str
    model: str
    now: Overview
    costs: list[RankCosts]


class ModelInfo(BaseModel):
    """The response of GET /get_model_info and GET /model_info, for routers."""

    model_path: str
    tokenizer_path: str
    served_model_name: str
    is_generation: bool
    task: Task
    max_model_len: int
    vocab_size: int


class RankLoad(BaseModel):
    """The load of an engine in requests and KV cache tokens."""

    dp_rank: int
    num_running_reqs: int
    num_waiting_reqs: int
    num_total_reqs: int
    num_used_tokens: int
    max_total_num_tokens: int
    token_usage: float


class Loads(BaseModel):
    """The response of GET /v1/loads: the load of each engine (the server has one), and the totals."""

    timestamp: str
    version: str
    dp_rank_count: int
    loads: list[RankLoad]
    aggregate: dict[str, float]


class OlderRankLoad(BaseModel):
    """The load of the engine, in the format that SGLang used before /v1/loads."""

    dp_rank: int
    num_reqs: int
    num_waiting_reqs: int
    num_tokens: int


class ServerLoad(BaseModel):
    """The number of running and waiting sequences."""

    server_load: int


class TokenizerInfo(BaseModel):
    """The response of GET /tokenizer_info, with the field names of tokenizer_config.json."""

    tokenizer_class: str
    vocab_size: int
    model_max_length: int
    bos_token: str | None
    eos_token: str | None
    chat_template: str | None


class Flushed(BaseModel):
    """Confirmation that the prefix cache was cleared."""

    success: bool
    message: str
