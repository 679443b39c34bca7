"""Structural tags: text with parts that follow grammars, in vLLM's older form and in xgrammar's newer one.

The older form: `{"structures": [{"begin", "schema", "end"}, ...], "triggers": [...]}`. The newer form: `{"type":
"structural_tag", "format": {"type": ..., ...}}`, where formats are nested.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from llguidance import LLMatcher
from numaserve.server.structured.json_schema import with_bounds
from numaserve.server.structured.json_text import read_json
from numaserve.server.structured.types import Limits, UnsupportedGrammar

_ANY = r"/(.|\n)*/"


def structural_tag_grammar(text: str, special: Mapping[str, int], limits: Limits) -> str:
    """Return llguidance's grammar for the structural tag with the JSON `text`.

    `special` maps the spelling of special tokens to their ids. Raises `UnsupportedGrammar`, also for tags that
    llguidance cannot express.
    """
    tag = read_json(text, limits)
    if not isinstance(tag, dict):
        raise UnsupportedGrammar("a structural tag must be an object")
    if "structures" in tag:
        structures = _each(tag, "structures", dict)
        content = [{"type": "json_schema", "json_schema": structure.get("schema", True)} for structure in structures]
        tags = [{**structure, "content": schema} for structure, schema in zip(structures, content, strict=True)]
        form = {"type": "triggered_tags", "triggers": tag.get("triggers"), "tags": tags}
    elif tag.get("type") == "structural_tag":
        form = _get(tag, "format", dict)
    else:
        raise UnsupportedGrammar(
            "a structural tag needs 'structures' and 'triggers', or the type 'structural_tag' and a 'format'"
        )
    return _Writer(special).grammar(form)


class _Writer:
    """Writes a grammar in Lark's syntax, rule by rule."""

    def __init__(self, special: Mapping[str, int]) -> None:
        self._special = {spelling: token_id for spelling, token_id in special.items() if spelling}
        spellings = sorted(map(re.escape, self._special), key=len, reverse=True)
        self._splitter = re.compile(f"({'|'.join(spellings)})") if spellings else None
        self._rules: list[str] = []
        self._forms: dict[str, Callable[[dict[str, Any], bool], str]] = {
            "const_string": self._const_string,
            "json_schema": self._json_schema,
            "regex": self._regex,
            "any_text": self._any_text,
            "sequence": self._sequence,
            "or": self._or,
            "tag": self._tag,
            "triggered_tags": self._triggered_tags,
            "tags_with_separator": self._tags_with_separator,
        }

    def grammar(self, form: dict[str, Any]) -> str:
        """Return the whole grammar of the format `form`."""
        body = self._write(form, True)
        return LLMatcher.grammar_from_lark("\n".join([f"start: {body}", *self._rules]))

    def _write(self, form: dict[str, Any], last: bool) -> str:
        """Return the right side of a rule; `last`: nothing follows it."""
        kind = form.get("type")
        write = self._forms.get(kind) if isinstance(kind, str) else None
        if write is None:
            known = ", ".join(self._forms)
            raise UnsupportedGrammar(
                f"the structural tag's type {kind!r} is not supported; supported types are {known}", "type"
            )
        return write(form, last)

    def _rule(self, body: str, option: str = "") -> str:
        name = f"r{len(self._rules)}"
        self._rules.append(f"{name}{option}: {body}")
        return name

    def _literal(self, text: str) -> str:
        """Return the literal for `text`; special tokens in it match only as tokens, never as plain text."""
        parts = self._splitter.split(text) if self._splitter else [text]
        written = [f"<[{self._special[part]}]>" if part in self._special else _quoted(part) for part in parts if part]
        return " ".join(written) or '""'

    def _until(self, terminal: str, end: str) -> str:
        """Return the shortest match of `terminal`, followed by `end`.

        The text at the beginning of `end` is in the same lexeme; otherwise the lexeme would continue past the end.
        """
        first, rest = self._first(end)
        if first in self._special:
            return f"{self._rule(terminal)} {self._literal(end)}"
        head = self._rule(f"{terminal} {_quoted(first)}", "[lazy]")
        return f"{head} {self._literal(rest)}" if rest else head

    def _first(self, text: str) -> tuple[str, str]:
        """Split `text` after its first part: a special token, or the text before one."""
        parts = [part for part in self._splitter.split(text) if part] if self._splitter else [text]
        return parts[0], text[len(parts[0]) :]

    def _const_string(self, form: dict[str, Any], last: bool) -> str:
        return self._literal(_get(form, "value", str))

    def _json_schema(self, form: dict[str, Any], last: bool) -> str:
        if form.get("style", "json") != "json":
            _refuse("style", f"{form['style']!r} is not supported")
        schema = form.get("json_schema", True)
        if not isinstance(schema, dict | bool):
            _refuse("json_schema", "is not a JSON schema")
        written = schema if isinstance(schema, dict) else {} if schema else {"enum": []}
        return self._rule(f"%json {json.dumps(with_bounds(written))}")

    def _regex(self, form: dict[str, Any], last: bool) -> str:
        return self._rule(_pattern(form))

    def _any_text(self, form: dict[str, Any], last: bool) -> str:
        if form.get("excludes"):
            _refuse("excludes", "is not supported")
        if not last:
            _refuse("any_text", "is supported only at the end of the format, or as the content of a tag with an end")
        return self._rule(_ANY)

    def _sequence(self, form: dict[str, Any], last: bool) -> str:
        elements = _each(form, "elements", dict)
        return " ".join(self._write(element, last and element is elements[-1]) for element in elements)

    def _or(self, form: dict[str, Any], last: bool) -> str:
        return self._one_of([self._write(element, last) for element in _each(form, "elements", dict)])

    def _one_of(self, alternatives: list[str]) -> str:
        return f"({' | '.join(alternatives)})"

    def _tag(self, form: dict[str, Any], last: bool, begun: str = "") -> str:
        """Return the rule of a tag, without the part `begun` of its begin, which has already been written."""
        begin, end, content = _get(form, "begin", str)[len(begun) :], _end(form), _get(form, "content", dict)
        parts = [self._literal(begin)] if begin else []
        if end and content.get("type") in ("any_text", "regex"):
            terminal = _ANY if content["type"] == "any_text" and not content.get("excludes") else _pattern(content)
            parts.append(self._until(terminal, end))
        else:
            parts.append(self._write(content, last and not end))
            parts += [self._literal(end)] if end else []
        return " ".join(parts)

    def _triggered_tags(self, form: dict[str, Any], last: bool) -> str:
        if form.get("excludes"):
            _refuse("excludes", "is not supported")
        if not last:
            _refuse("triggered_tags", "is supported only at the end of the format")
        branches = self._one_of(self._branches(_each(form, "triggers", str), _each(form, "tags", dict)))
        once, needed = form.get("stop_after_first") is True, form.get("at_least_one") is True
        if once:
            return branches if needed else self._one_of([branches, self._rule(_ANY)])
        return f"{branches}{'+' if needed else '*'} {self._rule(_ANY)}"

    def _branches(self, triggers: list[str], tags: list[dict[str, Any]]) -> list[str]:
        """Return, for each trigger, the text up to it and a choice of the tags that begin with it."""
        branches, left = [], list(tags)
        for trigger in triggers:
            begun = [tag for tag in left if _get(tag, "begin", str).startswith(trigger)]
            left = [tag for tag in left if tag not in begun]
            if not trigger or not begun:
                _refuse("triggers", f"contains {trigger!r}, but no tag begins with it")
            ways = self._one_of([self._tag(tag, False, trigger) for tag in begun])
            branches.append(f"{self._until(_ANY, trigger)} {ways}")
        if left:
            _refuse("begin", f"{left[0]['begin']!r} starts with none of the triggers")
        return branches

    def _tags_with_separator(self, form: dict[str, Any], last: bool) -> str:
        tags = self._one_of([self._tag(tag, False) for tag in _each(form, "tags", dict)])
        separator = _get(form, "separator", str)
        more = "" if form.get("stop_after_first") is True else f" ({self._literal(separator)} {tags})*"
        return f"({tags}{more})" if form.get("at_least_one") is True else f"({tags}{more})?"


def _pattern(form: dict[str, Any]) -> str:
    if form.get("type") != "regex":
        _refuse("excludes", "is not supported")
    pattern = re.sub(r"(?<!\\)((?:\\\\)*)/", r"\1\\/", _get(form, "pattern", str))
    return f"/{pattern}/".replace("\n", "\\n")


def _end(form: dict[str, Any]) -> str:
    """Return a tag's end. The newer form also allows several ends, any of which ends the tag."""
    end = form.get("end")
    if isinstance(end, list) and len(end) == 1:
        end = end[0]
    return end if isinstance(end, str) else _refuse("end", "is not a string")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _get(form: dict[str, Any], name: str, kind: type) -> Any:
    value = form.get(name)
    return value if isinstance(value, kind) else _refuse(name, "is missing or has the wrong type")


def _each(form: dict[str, Any], name: str, kind: type) -> Any:
    """Return a list with at least one item, all of the type `kind`."""
    values = _get(form, name, list)
    if not values or not all(isinstance(value, kind) for value in values):
        _refuse(name, "is empty or has an element of the wrong type")
    return values


def _refuse(name: str, what: str) -> NoReturn:
    raise UnsupportedGrammar(f"the structural tag's {name} {what}", name)
