"""Values of a body that may be of several kinds: what tells which one was sent.

Tags of kinds have brackets, so that `param_of` leaves them out.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from numaserve.server.http.fields.media import MEDIA, takes_no
from pydantic import BaseModel, BeforeValidator


def kind_of(value: Any, default: str | None = None) -> Any:
    """Return what an object says in `type`, or a checked one has there; None for what is no object."""
    return value.get("type", default) if isinstance(value, Mapping) else getattr(value, "type", None)


def only_types(
    kinds: Sequence[str], unserved: Mapping[str, str] = MEDIA, default: str | None = None
) -> BeforeValidator:
    """Refuses objects of other types than `kinds`, in words: pydantic's own repeat what was sent.

    `unserved` are types of other input than text, with the name of that input; without a type an object has the
    `default`.
    """
    supported = ", ".join(map(repr, kinds))

    def check(value: object) -> object:
        # First what nearly each part of a long content is: the other checks take several times as long.
        if (type(value) is dict and value.get("type", default) in kinds) or isinstance(value, BaseModel):
            return value
        kind = kind_of(value, default)
        if isinstance(kind, str) and kind in unserved:
            raise ValueError(takes_no(unserved[kind]))
        raise ValueError(f"the type is not supported; supported types are {supported}")

    return BeforeValidator(check)


def tag_of(default: str | None = None) -> Callable[[Any], str]:
    """What finds the tag of an object that says in `type` what it is."""

    def tag(value: Any) -> str:
        return f"[{kind_of(value, default)}]"

    return tag


def text_or_list(value: object) -> str:
    """The tag of a text or of a list: of errors that are about the kind of content that was sent."""
    return "[list]" if isinstance(value, list) else "[text]"


def word_or_type(value: object) -> str:
    """The tag of a word, or of an object that says in `type` what it is; a function unless it is another one."""
    if not isinstance(value, Mapping):
        return "[word]"
    return "[allowed_tools]" if kind_of(value) == "allowed_tools" else "[function]"


def word_or_object(value: object) -> str:
    """The tag of a word or of an object, such as a choice of tools."""
    return "[object]" if isinstance(value, dict) else "[word]"
