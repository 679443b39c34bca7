"""The kinds of content of a field, by their names in templates."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from numaserve.server.answers.response_template.errors import BadTemplate, Unreadable, expect

PLAIN = frozenset({"text"})  # the value is the text itself

Parser = Callable[[str], Any]
_Arguments = Mapping[str, Any]

_TAKEN = re.compile("\x01([0-9]+)\x02")  # replaces a text between a model's own marks while JSON is repaired
_BARE_KEY = re.compile(r"(?<=[{,])(\w+):")


def parser_of(kind: object, arguments: object, where: str) -> Parser:
    """Return the parser of contents of this kind, which raises `Unreadable`. Raises `BadTemplate`."""
    if not isinstance(arguments, dict):
        raise BadTemplate(f"{where}: content_args must be an object")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise BadTemplate(f"{where}: content must be one of {', '.join(_KINDS)}")
    return _KINDS[kind](arguments, where)


def _text(arguments: _Arguments, _where: str) -> Parser:
    return str.strip if arguments.get("strip", True) else str


def _number(convert: Callable[[str], Any]) -> Callable[[_Arguments, str], Parser]:
    def parse(text: str) -> Any:
        try:
            return convert(text)
        except ValueError as error:
            raise Unreadable from error

    return lambda _arguments, _where: parse


def _bool(_arguments: _Arguments, _where: str) -> Parser:
    return lambda text: text.strip().lower() in ("true", "1")


def _json(arguments: _Arguments, where: str) -> Parser:
    marks = arguments.get("string_delims", [])
    expect(
        isinstance(marks, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in marks),
        f"{where}: string_delims must be a list of pairs of strings",
    )
    taken = [re.compile(f"{re.escape(begin)}(.*?){re.escape(end)}", re.DOTALL) for begin, end in marks]
    bare_keys, else_text = bool(arguments.get("unquoted_keys")), bool(arguments.get("allow_non_json"))

    def parse(text: str) -> Any:
        try:
            return json.loads(_put_right(text, taken, bare_keys))
        except (ValueError, RecursionError) as error:
            if else_text:
                return text.strip()
            raise Unreadable from error

    return parse


def _put_right(text: str, taken: list[re.Pattern[str]], bare_keys: bool) -> str:
    """Return valid JSON for a text with a model's own marks around strings, or without quotes around keys."""
    if taken and ("\x01" in text or "\x02" in text):
        raise Unreadable
    texts: list[str] = []

    def take(found: re.Match[str]) -> str:
        texts.append(found[1])
        return f"\x01{len(texts) - 1}\x02"

    for pattern in taken:
        text = pattern.sub(take, text)
    if bare_keys:
        text = _BARE_KEY.sub(r'"\1":', text)
    return _TAKEN.sub(lambda found: json.dumps(texts[int(found[1])]), text) if texts else text


def _nested(arguments: _Arguments, where: str) -> Parser:
    """Return the parser of the values inside a content that has several values."""
    given = arguments.get("value_parser")
    if given is None:
        return str
    if not isinstance(given, dict):
        raise BadTemplate(f"{where}: value_parser must be an object")
    return parser_of(given.get("name", "text"), given.get("args", {}), where)


def _tags(arguments: _Arguments, where: str) -> Parser:
    pattern = arguments.get("tag_pattern")
    try:
        tag = re.compile(pattern or "", re.DOTALL)
    except (re.error, TypeError, OverflowError, RecursionError) as error:
        raise BadTemplate(f"{where}: tag_pattern is not a valid regular expression: {error}") from error
    expect("key" in tag.groupindex, f"{where}: tag_pattern must have a group named 'key'")
    parse_value, merges = _nested(arguments, where), arguments.get("merge_duplicates")
    has_value = "value" in tag.groupindex

    def parse(text: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for match in tag.finditer(text):
            key = match["key"]
            if key is None:
                raise Unreadable
            value = parse_value(match["value"] or "" if has_value else "")
            if key in found and merges:
                before = found[key]
                found[key] = [*before, value] if isinstance(before, list) else [before, value]
            else:
                found[key] = value
        return found

    return parse


def _lines(arguments: _Arguments, where: str) -> Parser:
    line_end, between = arguments.get("line_sep", "\n"), arguments.get("kv_sep", ":")
    if not isinstance(line_end, str) or not isinstance(between, str) or not line_end or not between:
        raise BadTemplate(f"{where}: line_sep and kv_sep must be strings that are not empty")
    clean, parse_value = _text(arguments, where), _nested(arguments, where)

    def parse(text: str) -> dict[str, Any]:
        pairs = (clean(line).split(between, 1) for line in text.split(line_end))
        return {clean(pair[0]): parse_value(clean(pair[1])) for pair in pairs if len(pair) == 2}

    return parse


_KINDS: dict[str, Callable[[_Arguments, str], Parser]] = {
    "text": _text,
    "int": _number(int),
    "float": _number(float),
    "bool": _bool,
    "json": _json,
    "xml-inline": _tags,
    "kv-lines": _lines,
}
