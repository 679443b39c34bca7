"""The fields that /v1/chat/completions and /v1/completions share, and their ranges.

No field is ignored silently. A field is (a) served, (b) without effect on the result and accepted, (c) known but not
supported: only its neutral values are accepted, or (d) unknown: refused. null stands for the default everywhere.
"""

from __future__ import annotations

from typing import Annotated, Any

from numaserve.workers.protocol import MAX_LOGPROBS
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

MAX_INT = 2**31 - 1
MAX_N = 128
MAX_STOP_STRINGS = 32
MAX_STOP_TOKEN_IDS = 256
MAX_LOGIT_BIAS = 1024


class Strict(BaseModel):
    """No unknown fields, no NaN or infinity, no strings or booleans where numbers belong."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


def neutral(*values: object) -> AfterValidator:
    """Accept null and `values`, with which a field that is not supported changes nothing; refuse anything else."""
    accepted = ", ".join(["null", *map(repr, values)])

    def check(value: object) -> object:
        if value is None or any(type(value) is type(item) and value == item for item in values):
            return value
        raise ValueError(f"this server does not support it; leave it out or use {accepted}")

    return AfterValidator(check)


def conflict(param: str, message: str) -> PydanticCustomError:
    """Fields that are fine each but not together; `param` is the one to blame."""
    return PydanticCustomError("conflict", message, {"param": param})


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _no_float_overflow(value: object) -> object:
    # An integer of hundreds of digits is valid JSON, and turning it into a float raises OverflowError.
    if isinstance(value, int) and abs(value) > 2**63:
        raise ValueError("the number is too large")
    return value


def _whole_characters(value: str) -> str:
    # JSON can spell half of a UTF-16 pair; no tokenizer and no UTF-8 answer can carry it.
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError("the text has a lone surrogate, which is not a character") from None
    return value


Text = Annotated[str, AfterValidator(_whole_characters)]
Number = Annotated[float, BeforeValidator(_no_float_overflow)]
StopString = Annotated[Text, StringConstraints(min_length=1, max_length=1024)]
StopStrings = Annotated[list[StopString], BeforeValidator(_as_list), Field(max_length=MAX_STOP_STRINGS)]
TokenId = Annotated[int, Field(ge=0, le=MAX_INT)]
LogitBias = dict[Annotated[str, StringConstraints(pattern=r"^[0-9]{1,10}$")], Annotated[Number, Field(ge=-100, le=100)]]
ShortText = Annotated[Text, StringConstraints(max_length=1024)]


class StreamOptions(Strict):
    """`include_obfuscation` pads events against traffic analysis; it changes no result and is not done here."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class SamplingFields(Strict):
    """How to sample, when to stop and how to send it."""

    model: ShortText | None = None
    n: Annotated[int, Field(ge=1, le=MAX_N)] | None = None
    max_tokens: Annotated[int, Field(ge=0, le=MAX_INT)] | None = None
    temperature: Annotated[Number, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: StopStrings | None = None
    logit_bias: Annotated[LogitBias, Field(max_length=MAX_LOGIT_BIAS)] | None = None
    presence_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    # Extensions, with the names vLLM and SGLang use.
    top_k: Annotated[int, Field(ge=-1, le=MAX_INT)] | None = None  # -1 and 0 are off
    min_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[Number, Field(ge=0.01, le=100)] | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MAX_STOP_TOKEN_IDS)] | None = None
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, Field(ge=0, le=MAX_INT)] | None = None
    skip_special_tokens: bool | None = None
    cache_salt: Annotated[Text, StringConstraints(max_length=256)] | None = None

    # Without effect on the result.
    user: ShortText | None = None
    metadata: dict[ShortText, ShortText] | None = None
    safety_identifier: ShortText | None = None
    prompt_cache_key: ShortText | None = None
    prompt_cache_retention: ShortText | None = None

    @model_validator(mode="after")
    def _stream_options_need_a_stream(self) -> SamplingFields:
        if self.stream_options is not None and not self.stream:
            raise conflict("stream_options", "'stream_options' needs 'stream': true")
        return self


TopLogprobs = Annotated[int, Field(ge=0, le=MAX_LOGPROBS)]
Neutral = Any
