"""Types of options whose values are more than a number or a text."""

import re
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, BeforeValidator


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be blank")
    return text


def _as_tuple(value: object) -> object:
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list) or not value or not all(isinstance(each, str) for each in value):
        raise ValueError("must be a name or a list of names")
    return tuple(dict.fromkeys(value))  # a name given twice is no mistake worth a refusal, and is listed once


def _url_prefix(text: str) -> str:
    if not re.fullmatch(r"(/[\w.~-]+)+", text, re.ASCII) or {".", ".."} & set(text.split("/")):
        raise ValueError("must start with a slash and not end with one, as in /llm")
    return text


DrafterName = Literal["suffix"]
DRAFTERS: tuple[DrafterName, ...] = get_args(DrafterName)
NonBlank = Annotated[str, AfterValidator(_not_blank)]
UrlPrefix = Annotated[str, AfterValidator(_url_prefix)]
Names = Annotated[tuple[NonBlank, ...], BeforeValidator(_as_tuple)]
