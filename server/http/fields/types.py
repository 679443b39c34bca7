"""Building blocks of request fields: types with ranges, and the treatment of unsupported fields.

A field is (a) served, (b) accepted and without effect on the result, (c) known but not supported: only its neutral
values are accepted, or (d) unknown: ignored, as the answer reports, or refused. null means the default everywhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any, Literal

from numaserve.server.config.option_types import SpeculativeName, alone_or_drafters
from numaserve.server.http.fields.json_data import data
from numaserve.server.http.fields.media import takes_no
from numaserve.server.http.fields.unknown_fields import UnknownFields
from numaserve.server.http.limits import ApiLimits
from numaserve.workers.interface.protocol import MAX_LOGPROBS
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    StringConstraints,
    ValidationInfo,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

MAX_INT = 2**31 - 1
MAX_N = 128
MAX_STOP_STRINGS = 32
MAX_STOP_TOKEN_IDS = 256
MAX_RESUMED = 16384  # tokens; the event loop detokenizes them
MAX_RESUMED_STOPS = 1 << 22  # resumed tokens x stop strings x characters of the longest: tenths of a second
MAX_LOGIT_BIAS = 1024
MAX_METADATA = 1024
MAX_PRIORITY = 1000


class Strict(BaseModel):
    """A model without NaN and infinity, and without strings or booleans in place of numbers.

    Unknown fields are recorded in the `UnknownFields` in the validation context; without that they are refused.
    """

    @classmethod
    def most_tokens(cls, limits: ApiLimits) -> int:
        """Return the maximum number of text tokens, or token ids, that a body of this class may need to carry."""
        return limits.context_length

    # The string below a field is its description, in the OpenAPI document and in the tables of the documentation.
    model_config = ConfigDict(
        extra="ignore", strict=True, allow_inf_nan=False, frozen=True, use_attribute_docstrings=True
    )

    @model_validator(mode="before")
    @classmethod
    def _note_unknown_fields(cls, values: object, info: ValidationInfo) -> object:
        if isinstance(values, dict) and not values.keys() <= cls.model_fields.keys():
            unknown = info.context if isinstance(info.context, UnknownFields) else UnknownFields(refused=True)
            unknown.note([name for name in values if name not in cls.model_fields], cls.model_fields)
        return values


class neutral:
    """Accepts null and `values`, the values of an unsupported field that have no effect; refuses all others.

    `media` names the input other than text that the field carries.
    """

    def __init__(self, *values: object, media: str | None = None) -> None:
        self._values = values
        self._media = media

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {
            "enum": [None, *self._values],
            "description": "Not supported. The server accepts only the listed values, which have no effect.",
        }

    def _check(self, value: object) -> object:
        if value is None or any(type(value) is type(item) and value == item for item in self._values):
            return value
        if self._media is not None:
            raise ValueError(takes_no(self._media))
        accepted = ", ".join(map(json.dumps, [None, *self._values]))
        raise ValueError(f"this field is not supported; omit it or use {accepted}")


class made_of:
    """A value that `make` builds from a client's value of the type `source`; the result may be passed on as data."""

    def __init__(self, source: Any, make: Callable[[Any], object]) -> None:
        self._source = source
        self._make = make

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._make, handler.generate_schema(self._source))


def conflict(param: str, message: str) -> PydanticCustomError:
    """Return the error for a rule that no schema states; `param` is the invalid field, "" for the validated field."""
    return PydanticCustomError("conflict", message, {"param": param})


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _alone_or_drafters(names: list[SpeculativeName]) -> list[SpeculativeName]:
    try:
        alone_or_drafters(names)
    except ValueError as error:
        raise conflict("", str(error)) from None
    return names


def _no_float_overflow(value: object) -> object:
    # An integer of hundreds of digits is valid JSON, and converting it to a float raises OverflowError.
    if isinstance(value, int) and abs(value) > 2**63:
        raise ValueError("the number is too large")
    return value


def whole_characters(value: str) -> str:
    """Return `value`. Raises `ValueError` if it contains a part of a character."""
    # JSON can spell half of a UTF-16 pair; neither a tokenizer nor a UTF-8 answer can carry it.
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError("the text contains a lone surrogate, which is not a valid character") from None
    return value


def _one_adapter(value: object) -> object:
    # SGLang takes a list, with an adapter for each prompt of a batch.
    if isinstance(value, list):
        raise ValueError(
            "a list of adapters is not supported. A request has one LoRA adapter for all of its prompts. Give one "
            "name, or send a request for each adapter"
        )
    return value


Neutral = Any
Unused = Annotated[Any, AfterValidator(lambda _value: None), Field(description="No effect; any value is accepted.")]
Text = Annotated[str, AfterValidator(whole_characters)]
# Placed after a number's bounds; before them it would hide the bounds from the OpenAPI document.
no_overflow = BeforeValidator(_no_float_overflow)
StopString = Annotated[Text, StringConstraints(min_length=1, max_length=1024)]
StopStrings = Annotated[list[StopString], BeforeValidator(_as_list), Field(max_length=MAX_STOP_STRINGS)]
Speculative = Annotated[
    list[SpeculativeName],
    BeforeValidator(_as_list),
    Field(min_length=1, max_length=8),
    AfterValidator(_alone_or_drafters),
]
TokenId = Annotated[int, Field(ge=0, le=MAX_INT)]
_ID_PATTERN = r"^[0-9]{1,10}$"
LogitBias = Annotated[
    dict[Annotated[str, StringConstraints(pattern=_ID_PATTERN)], Annotated[float, Field(ge=-100, le=100), no_overflow]],
    Field(max_length=MAX_LOGIT_BIAS, json_schema_extra={"propertyNames": {"pattern": _ID_PATTERN}}),
]
Data = Annotated[dict[str, Any], AfterValidator(data)]  # can be written as JSON again
ShortText = Annotated[Text, StringConstraints(max_length=1024)]
AdapterName = Annotated[ShortText, BeforeValidator(_one_adapter)]
TemplateArguments = Annotated[
    dict[
        Annotated[str, StringConstraints(min_length=1, max_length=64)],
        Annotated[bool | int | float | Annotated[Text, StringConstraints(max_length=256)] | None, no_overflow],
    ],
    Field(max_length=32),
]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Verbosity = Literal["low", "medium", "high"]
Priority = Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)]
TopLogprobs = Annotated[int, Field(ge=0, le=MAX_LOGPROBS)]
