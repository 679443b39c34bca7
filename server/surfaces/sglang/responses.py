"""The formats of SGLang's answers for the OpenAPI document."""

from typing import Literal

from pydantic import BaseModel

_Entry = tuple[float | None, int, str | None]


class SGLangFinish(BaseModel):
    """The reason for the end of a response: the matched stop token or string, the length, or a message about an
    abort."""

    type: Literal["stop", "length", "abort"]
    matched: int | str | None = None
    length: int | None = None
    message: str | None = None


class SGLangMetaInfo(BaseModel):
    """Token counts, times in seconds and log-probabilities of a response; the first position of a prompt has no
    log-probability."""

    id: str
    finish_reason: SGLangFinish | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    e2e_latency: float | None = None
    input_token_logprobs: list[_Entry] | None = None
    output_token_logprobs: list[_Entry] | None = None
    input_top_logprobs: list[list[_Entry] | None] | None = None
    output_top_logprobs: list[list[_Entry]] | None = None
    output_token_ids_logprobs: list[list[_Entry]] | None = None


class SGLangAnswer(BaseModel):
    """The response to a prompt."""

    text: str
    output_ids: list[int]
    meta_info: SGLangMetaInfo


class SGLangChunk(SGLangAnswer):
    """An event of POST /generate: a response so far. `index` counts the responses if there are several."""

    index: int | None = None


class SGLangAborted(BaseModel):
    """The number of aborted requests."""

    aborted: int
