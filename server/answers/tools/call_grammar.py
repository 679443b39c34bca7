"""Parts of structural tags, in xgrammar's form, from which a format builds the grammar of its calls."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from numaserve.server.answers.tools.types import Tool

Form = dict[str, Any]

ANY_TEXT: Form = {"type": "any_text"}
_SHARED = ("$defs", "definitions")


def const(text: str) -> Form:
    """Return the form of exactly this text."""
    return {"type": "const_string", "value": text}


def regex(pattern: str) -> Form:
    """Return the form of text that matches the pattern."""
    return {"type": "regex", "pattern": pattern}


def sequence(*elements: Form) -> Form:
    """Return the form of these elements one after another; empty elements are dropped."""
    return {"type": "sequence", "elements": [each for each in elements if each != const("")] or [const("")]}


def one_of(*elements: Form) -> Form:
    """Return the form of any one of these elements."""
    return {"type": "or", "elements": list(elements)}


def tag(begin: str, content: Form, end: str) -> Form:
    """Return the form of content between two texts."""
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def tags(each: Sequence[Form], separator: str, at_least_one: bool, only_one: bool = False) -> Form:
    """Return the form of any number of tags, in any order."""
    limits = {"at_least_one": at_least_one, "stop_after_first": only_one}
    return {"type": "tags_with_separator", "tags": list(each), "separator": separator, **limits}


def triggered(trigger: str, each: Sequence[Form], only_one: bool) -> Form:
    """Return the form of free text with tags wherever the trigger appears."""
    return {"type": "triggered_tags", "triggers": [trigger], "tags": list(each), "stop_after_first": only_one}


def schema(of: Mapping[str, Any] | bool) -> Form:
    """Return the form of a JSON value."""
    return {"type": "json_schema", "json_schema": of}


def arguments_schema(tool: Tool) -> dict[str, Any]:
    """Return the schema of all arguments of a tool: an object, even if the tool's schema does not say so."""
    return {"type": "object", **(tool.parameters or {})}


def property_schemas(tool: Tool) -> dict[str, Any]:
    """Return the schema of each argument, with the definitions that it may refer to."""
    whole = tool.parameters or {}
    properties = whole.get("properties")
    return {name: part(each, whole) for name, each in properties.items()} if isinstance(properties, Mapping) else {}


def part(of: Any, whole: Mapping[str, Any]) -> Any:
    """Return a part of a schema as a schema of its own, with the definitions that it may refer to."""
    return {**{key: whole[key] for key in _SHARED if key in whole}, **of} if isinstance(of, Mapping) else of


def required_names(tool: Tool) -> set[str]:
    """Return the names of the required arguments."""
    names = (tool.parameters or {}).get("required")
    return {name for name in names if isinstance(name, str)} if isinstance(names, list) else set()


def takes_anything(tool: Tool) -> bool:
    """Return whether the schema does not restrict the arguments."""
    return not {"properties", "additionalProperties", "required"} & (tool.parameters or {}).keys()


def text_form(of: object) -> Form:
    """Return the form of a string without quotes: one of the values in its schema, or any."""
    values = of.get("enum", [of["const"]] if "const" in of else []) if isinstance(of, Mapping) else []
    texts = [value for value in values if isinstance(value, str)] if isinstance(values, list) else []
    return one_of(*map(const, texts)) if texts else ANY_TEXT


def listed(members: Sequence[tuple[Form, bool]], separator: str) -> Form:
    """Return the form of members in order, with `separator` between those present; each pair is (form, required).

    Required members come first: a member before all required ones must appear twice in the form, with and without a
    separator.
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


OfArgument = Callable[[str, Any], Form]  # returns the form of an argument from its name and schema


def each_argument(tool: Tool, form: OfArgument, separator: str) -> Form:
    """Return the form of all arguments of a tool, each built by `form`."""
    needed = required_names(tool)
    return listed([(form(name, of), name in needed) for name, of in property_schemas(tool).items()], separator)
