"""The shapes of SGLang's answers, for the OpenAPI document."""

from typing import Literal

from pydantic import BaseModel

_Entry = tuple[float | None, int, str | None]


class SGLangFinish(BaseModel):
    """The end of an answer: a stop token or string that matched, a length, or a message about an abort."""

    type: Literal["stop", "length", "abort"]
    matched: int | str | None = None
    length: int | None = None
    message: str | None = None


class SGLangMetaInfo(BaseModel):
    """Tokens, seconds and log-probabilities of an answer; a prompt's first position has none."""

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
    """The answer to a prompt."""

    text: str
    output_ids: list[int]
    meta_info: SGLangMetaInfo


class SGLangAborted(BaseModel):
    """How many requests were aborted."""

    aborted: int
