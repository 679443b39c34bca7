"""Values of a body that may be of several kinds, and the tags that distinguish the kinds.

Tags of kinds have brackets, so that `param_of` leaves them out.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from numaserve.server.http.fields.media import MEDIA, takes_no
from pydantic import BaseModel, BeforeValidator


def kind_of(value: Any, default: str | None = None) -> Any:
    """Return the `type` of an object or of a validated body; None for any other value."""
    return value.get("type", default) if isinstance(value, Mapping) else getattr(value, "type", None)


def only_types(
    kinds: Sequence[str],
    unserved: Mapping[str, str] = MEDIA,
    default: str | None = None,
    confused: Sequence[str] = (),
) -> BeforeValidator:
    """Return a validator that refuses objects of types other than `kinds`; pydantic's own messages repeat the input.

    `unserved` maps types of input other than text to the names of that input. An object without a type has the
    `default`. Types that clients have `confused` with one of the `kinds` pass as well.
    """
    supported, passing = ", ".join(map(repr, kinds)), (*kinds, *confused)

    def check(value: object) -> object:
        # The most frequent case first: the other checks take several times as long.
        if (type(value) is dict and value.get("type", default) in passing) or isinstance(value, BaseModel):
            return value
        kind = kind_of(value, default)
        if isinstance(kind, str) and kind in unserved:
            raise ValueError(takes_no(unserved[kind]))
        raise ValueError(f"the type is not supported; supported types are {supported}")

    return BeforeValidator(check)


def tag_of(default: str | None = None) -> Callable[[Any], str]:
    """Return a function that returns the tag of an object by its `type`."""

    def tag(value: Any) -> str:
        return f"[{kind_of(value, default)}]"

    return tag


def text_or_list(value: object) -> str:
    """Return the tag of a text or of a list, for errors about the kind of content."""
    return "[list]" if isinstance(value, list) else "[text]"


def word_or_type(value: object) -> str:
    """Return the tag of a word or of an object by its `type`; an unknown type counts as a function."""
    if not isinstance(value, Mapping):
        return "[word]"
    return "[allowed_tools]" if kind_of(value) == "allowed_tools" else "[function]"


def word_or_object(value: object) -> str:
    """Return the tag of a word or of an object, such as a choice of tools."""
    return "[object]" if isinstance(value, dict) else "[word]"
