"""The types of options whose values are more than a number or a string."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from numaserve.server.speculation.server_drafters import DRAFTERS
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
    return tuple(dict.fromkeys(value))  # a repeated name is accepted and listed once


def _url_prefix(text: str) -> str:
    if not re.fullmatch(r"(/[\w.~-]+)+", text, re.ASCII) or {".", ".."} & set(text.split("/")):
        raise ValueError("must start with a slash and not end with a slash, as in /llm")
    return text


if TYPE_CHECKING:
    DrafterName = str  # mypy knows no names that are found at run time
    SpeculativeName = str
else:
    DrafterName = Literal[DRAFTERS]
    SpeculativeName = Literal["auto", "off", DrafterName]
_ALONE = frozenset(("auto", "off"))


def alone_or_drafters(names: Sequence[SpeculativeName]) -> Sequence[SpeculativeName]:
    """Return `names`. Raises `ValueError` if `auto` or `off` stands with other names."""
    if len(names) > 1 and (alone := _ALONE.intersection(names)):
        raise ValueError(f"contains '{min(alone)}' and other names: '{min(alone)}' must be the only name")
    return names


def drafters_meant(names: Sequence[SpeculativeName]) -> tuple[DrafterName, ...]:
    """Return the drafters that `names` stand for."""
    return DRAFTERS if "auto" in names else tuple(each for each in DRAFTERS if each in names)


NonBlank = Annotated[str, AfterValidator(_not_blank)]
UrlPrefix = Annotated[str, AfterValidator(_url_prefix)]
Names = Annotated[tuple[NonBlank, ...], BeforeValidator(_as_tuple)]
Speculative = Annotated[tuple[SpeculativeName, ...], BeforeValidator(_as_tuple), AfterValidator(alone_or_drafters)]
