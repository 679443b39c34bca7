"""A validated response template: version 1 of transformers' format, as transformers 5.23 reads it."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from numaserve.server.answers.response_template.contents import PLAIN, parser_of
from numaserve.server.answers.response_template.errors import BadTemplate, Unreadable, expect
from numaserve.server.answers.response_template.transform import check_transform, transformed

_KEYS = {"version", "defaults", "fields", "start_anchor", "start_anchor_pattern"}
_FIELD_KEYS = {
    *("open", "open_pattern", "close", "close_pattern", "content", "content_args"),
    *("repeats", "join", "optional", "transform", "transform_each"),
}


@dataclass(frozen=True)
class Field:
    """A field of the message. Without `opens` it takes the text that no other field takes; without `closes` it has no
    end."""

    name: str
    opens: re.Pattern[str] | None
    closes: re.Pattern[str] | None
    parse: Callable[[str], Any]
    is_plain: bool  # the value is the text itself
    join: str | None  # separator between the texts of a repeated field; None: not defined
    optional: bool
    transform: Any  # None: no transform
    transform_each: bool

    def value(self, body: str, captures: Mapping[str, str]) -> Any:
        """Return the value of the text between the marks; `captures` are their named groups. Raises `Unreadable`."""
        parsed = self.parse(body)
        if self.transform is None:
            return parsed
        if not self.transform_each:
            return transformed(self.transform, {**captures, "content": parsed})
        if not isinstance(parsed, list) or not all(isinstance(each, dict) for each in parsed):
            raise Unreadable
        return [transformed(self.transform, {**captures, **each}) for each in parsed]


@dataclass(frozen=True)
class Template:
    """A whole template. `starts` matches the beginning of an answer's turn in the prompt."""

    fields: Mapping[str, Field]
    defaults: Mapping[str, Any]
    starts: re.Pattern[str]

    @property
    def leftover(self) -> Field | None:
        """The field that takes the text that no other field takes."""
        return next((field for field in self.fields.values() if field.opens is None), None)


def template_of(given: object) -> Template:
    """Return the template that `given` defines. Raises `BadTemplate`."""
    spec = _object(given, "the template", _KEYS)
    expect(spec.get("version", 1) == 1, "version must be 1")
    fields, defaults = spec.get("fields"), spec.get("defaults", {})
    expect(isinstance(defaults, dict), "defaults must be an object")
    if not isinstance(fields, dict) or not fields:
        raise BadTemplate("fields must be an object with at least one field")
    starts = _marks(spec, "start_anchor", "the template")
    if starts is None:
        raise BadTemplate("start_anchor or start_anchor_pattern must be set")
    made = {name: _field(name, each) for name, each in fields.items()}
    expect(
        sum(each.opens is None for each in made.values()) <= 1, "more than one field has neither open nor open_pattern"
    )
    return Template(made, defaults, starts)


def _field(name: str, given: object) -> Field:
    where = f"the field {name}"
    spec = _object(given, where, _FIELD_KEYS)
    opens, closes = (_marks(spec, key, where) for key in ("open", "close"))
    repeats, join, transform = bool(spec.get("repeats", False)), spec.get("join"), spec.get("transform")
    each = spec.get("transform_each", False)
    expect(join is None or (isinstance(join, str) and repeats), f"{where}: join must be a string and requires repeats")
    expect(isinstance(each, bool), f"{where}: transform_each must be true or false")
    expect(
        not each or transform is not None,
        f"{where}: transform_each is true, but transform is missing; set transform too",
    )
    check_transform(transform, where)
    groups = {group for marks in (opens, closes) if marks is not None for group in marks.groupindex}
    expect(
        not groups or transform is not None,
        f"{where}: open or close has named groups, but transform is missing; set transform too",
    )
    kind = spec.get("content", "text")
    return Field(
        name,
        opens,
        closes,
        parser_of(kind, spec.get("content_args", {}), where),
        kind in PLAIN and transform is None,
        join,
        bool(spec.get("optional", True)),
        transform,
        each,
    )


def _object(given: object, where: str, known: set[str]) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise BadTemplate(f"{where} is not an object")
    unknown = sorted(given.keys() - known)
    expect(not unknown, f"{where} has unknown keys: {', '.join(unknown)}")
    return given


def _marks(spec: Mapping[str, Any], key: str, where: str) -> re.Pattern[str] | None:
    """Return the expression of an opening or closing mark: one text, any of several texts, or a regular expression."""
    pattern = f"{key}_pattern"
    expect(not (key in spec and pattern in spec), f"{where} has both {key} and {pattern}; set only one of them")
    if pattern in spec:
        return compiled(spec[pattern], where)
    if key not in spec:
        return None
    texts = [spec[key]] if isinstance(spec[key], str) else spec[key]
    if not isinstance(texts, list) or not texts or not all(isinstance(each, str) and each for each in texts):
        raise BadTemplate(f"{where}: {key} must be a string or a list of strings, none of them empty")
    # If several texts begin alike, the longest wins.
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))), re.DOTALL)


def compiled(pattern: object, where: str) -> re.Pattern[str]:
    """Return the compiled expression `pattern`. Raises `BadTemplate`.

    It uses the standard library's `re`; transformers uses the package `regex`. What only `regex` supports, such as
    recursion, is refused: templates should not use it, and another dependency was rejected.
    """
    if not isinstance(pattern, str):
        raise BadTemplate(f"{where} has a regular expression that is not a string")
    try:
        return re.compile(pattern, re.DOTALL)
    except (re.error, OverflowError, RecursionError) as error:
        raise BadTemplate(f"{where} has an invalid regular expression: {error}") from error
