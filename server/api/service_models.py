"""The shapes of what the server tells of itself, for the OpenAPI document; none of it is checked against these.

OpenAI's and Anthropic's references for /v1/models, SGLang's for /v1/loads and /model_info, vLLM's for /load and
/tokenizer_info.
"""

from typing import Any, Literal

from numaserve.server.api.auth import PrefixSharing
from numaserve.server.engine.overview import Overview
from pydantic import BaseModel, ConfigDict


class Model(BaseModel):
    """A name that requests may have."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: str | None
    max_model_len: int


class ModelList(BaseModel):
    """The names that requests may have."""

    object: Literal["list"]
    data: list[Model]


class AnthropicModel(BaseModel):
    """A name that requests may have, in Anthropic's shape."""

    type: Literal["model"]
    id: str
    display_name: str
    created_at: str


class AnthropicModelList(BaseModel):
    """The names that requests may have, in Anthropic's shape."""

    data: list[AnthropicModel]
    has_more: Literal[False]
    first_id: str
    last_id: str


class Status(BaseModel):
    """The answer of a probe."""

    status: Literal["ok"]


class Version(BaseModel):
    """The version of numaserve."""

    version: str


class ServerInfo(BaseModel):
    """Configuration, workers and counters; what is in it grows."""

    model_config = ConfigDict(extra="allow")

    version: str
    model_path: str
    served_model_name: str
    served_model_names: list[str]
    prefix_sharing: PrefixSharing


class RankCosts(BaseModel):
    """What the steps of a rank have cost since it was loaded, in all and by operation."""

    rank: int
    steps: int
    tokens: int
    native_ns: int
    operations: list[dict[str, Any]]


class Machine(BaseModel):
    """What a view of the machine shows, at one moment."""

    version: str
    model: str
    now: Overview
    costs: list[RankCosts]


class ModelInfo(BaseModel):
    """The answer of /get_model_info and /model_info, which routers ask."""

    model_path: str
    tokenizer_path: str
    served_model_name: str
    is_generation: bool
    max_model_len: int
    vocab_size: int


class RankLoad(BaseModel):
    """The load of the engine."""

    dp_rank: int
    num_running_reqs: int
    num_waiting_reqs: int
    num_total_reqs: int
    num_used_tokens: int
    max_total_num_tokens: int
    token_usage: float


class Loads(BaseModel):
    """The load of the one engine, and of all."""

    timestamp: str
    version: str
    dp_rank_count: int
    loads: list[RankLoad]
    aggregate: dict[str, float]


class OlderRankLoad(BaseModel):
    """The load of the engine, as SGLang told it before there was /v1/loads."""

    dp_rank: int
    num_reqs: int
    num_waiting_reqs: int
    num_tokens: int


class ServerLoad(BaseModel):
    """Sequences that run or wait."""

    server_load: int


class TokenizerInfo(BaseModel):
    """The answer of /tokenizer_info, in the names of a tokenizer_config.json."""

    tokenizer_class: str
    vocab_size: int
    model_max_length: int
    bos_token: str | None
    eos_token: str | None
    chat_template: str | None


class Flushed(BaseModel):
    """The cache is empty now."""

    success: bool
    message: str
