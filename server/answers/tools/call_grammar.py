"""Parts of structural tags, in xgrammar's form: how a format says what its calls must look like."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from numaserve.server.answers.tools.types import Tool

Form = dict[str, Any]

ANY_TEXT: Form = {"type": "any_text"}
_SHARED = ("$defs", "definitions")


def const(text: str) -> Form:
    """That text."""
    return {"type": "const_string", "value": text}


def regex(pattern: str) -> Form:
    """Text that the pattern matches."""
    return {"type": "regex", "pattern": pattern}


def sequence(*elements: Form) -> Form:
    """One after the other, without those that are empty."""
    return {"type": "sequence", "elements": [each for each in elements if each != const("")] or [const("")]}


def one_of(*elements: Form) -> Form:
    """One of them."""
    return {"type": "or", "elements": list(elements)}


def tag(begin: str, content: Form, end: str) -> Form:
    """Content between two texts."""
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def tags(each: Sequence[Form], separator: str, at_least_one: bool, only_one: bool = False) -> Form:
    """Any number of tags, in any order."""
    limits = {"at_least_one": at_least_one, "stop_after_first": only_one}
    return {"type": "tags_with_separator", "tags": list(each), "separator": separator, **limits}


def triggered(trigger: str, each: Sequence[Form], only_one: bool) -> Form:
    """Free text, and tags where the trigger comes."""
    return {"type": "triggered_tags", "triggers": [trigger], "tags": list(each), "stop_after_first": only_one}


def schema(of: Mapping[str, Any] | bool) -> Form:
    """A value in JSON."""
    return {"type": "json_schema", "json_schema": of}


def arguments_schema(tool: Tool) -> dict[str, Any]:
    """The schema of all arguments of a tool, which are an object even where its schema does not say so."""
    return {"type": "object", **(tool.parameters or {})}


def property_schemas(tool: Tool) -> dict[str, Any]:
    """The schema of each argument, with what all of them may refer to."""
    whole = tool.parameters or {}
    properties = whole.get("properties")
    return {name: part(each, whole) for name, each in properties.items()} if isinstance(properties, Mapping) else {}


def part(of: Any, whole: Mapping[str, Any]) -> Any:
    """A part of a schema as one by itself, with the definitions that it may refer to."""
    return {**{key: whole[key] for key in _SHARED if key in whole}, **of} if isinstance(of, Mapping) else of


def required_names(tool: Tool) -> set[str]:
    """The arguments that a call must have."""
    names = (tool.parameters or {}).get("required")
    return {name for name in names if isinstance(name, str)} if isinstance(names, list) else set()


def takes_anything(tool: Tool) -> bool:
    """Whether nothing is said of the arguments."""
    return not {"properties", "additionalProperties", "required"} & (tool.parameters or {}).keys()


def text_form(of: object) -> Form:
    """A string that is written without quotes: one of the values of its schema, or any."""
    values = of.get("enum", [of["const"]] if "const" in of else []) if isinstance(of, Mapping) else []
    texts = [value for value in values if isinstance(value, str)] if isinstance(values, list) else []
    return one_of(*map(const, texts)) if texts else ANY_TEXT


def listed(members: Sequence[tuple[Form, bool]], separator: str) -> Form:
    """Members in their order, with `separator` between those that are there; the second of each says if it must be.

    Those that must be come first: what may come before any other must be written twice, with a separator and without.
    """
    ordered = sorted(members, key=lambda member: not member[1])
    if not ordered:
        return const("")
    if not separator:
        return sequence(*(form if needed else one_of(form, const("")) for form, needed in ordered))
    if ordered[0][1]:
        first, *rest = ordered
        return sequence(first[0], *(_after(form, needed, separator) for form, needed in rest))
    starts = [
        sequence(form, *(_after(*other, separator) for other in ordered[index + 1 :]))
        for index, (form, _) in enumerate(ordered)
    ]
    return one_of(*starts, const(""))


def _after(form: Form, needed: bool, separator: str) -> Form:
    with_separator = sequence(const(separator), form)
    return with_separator if needed else one_of(with_separator, const(""))


OfArgument = Callable[[str, Any], Form]  # the form of an argument by its name and schema


def each_argument(tool: Tool, form: OfArgument, separator: str) -> Form:
    """All arguments of a tool, each written as `form` says."""
    needed = required_names(tool)
    return listed([(form(name, of), name in needed) for name, of in property_schemas(tool).items()], separator)
