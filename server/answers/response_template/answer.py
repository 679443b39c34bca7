"""The answer as this server returns it, built from the regions of the text.

Differences from transformers: if transformers refuses a message, the answer here is its text, since a client's result
must not depend on how well a model writes. A region that cannot be read becomes content, marks included. If there are
several contents or thoughts, transformers keeps the last one; here all of them are kept. A region that the prompt has
begun adds only its rest to the answer; a region that the prompt has ended adds nothing.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numaserve.server.answers.response_template.definition import Template
from numaserve.server.answers.response_template.errors import Unreadable
from numaserve.server.answers.response_template.reading import Region, check_complete, regions, turn_of
from numaserve.server.answers.response_template.types import CALLS, CONTENT, THOUGHTS, Question, ReadAnswer, ReadCall
from numaserve.server.answers.tools.argument_types import types_of, value_in_json


def answer_of(template: Template, question: Question, hidden: re.Pattern[str] | None = None) -> ReadAnswer:
    """Return the answer to `question`, with matches of `hidden` removed from its texts.

    Raises `Unreadable` if the text is no message at all.
    """
    turn = turn_of(template, question.prompt)
    return _Reading(template, question, turn + question.text, len(turn), hidden).answer()


@dataclass
class _Reading:
    template: Template
    question: Question
    text: str
    from_prompt: int  # characters of `text` that belong to the prompt
    hidden: re.Pattern[str] | None

    def answer(self) -> ReadAnswer:
        defaults = self.template.defaults
        calls: list[ReadCall] = []
        contents, thoughts = _Parts(), _Parts()
        found = set(defaults)
        for region in regions(self.template, self.text):
            name = region.field.name
            found.add(name)
            if region.end <= self.from_prompt:
                continue
            try:
                if not self._is_wanted(name):
                    raise Unreadable
                value = self._value(region)
                if name == CALLS:
                    calls += self._calls(value)
                elif name == CONTENT or name in THOUGHTS:
                    parts = contents if name == CONTENT else thoughts
                    parts.add(_as_text(value), region.field.join)
            except Unreadable:
                contents.add_as_it_stands(self.text[max(region.start, self.from_prompt) : region.end])
        check_complete(self.template, found)
        return ReadAnswer(contents.text or _as_text(defaults.get(CONTENT)), thoughts.text, calls)

    def _is_wanted(self, name: str) -> bool:
        return (name != CALLS or self.question.calls) and (name not in THOUGHTS or self.question.thoughts)

    def _value(self, region: Region) -> Any:
        is_plain = region.field.is_plain  # a part of any other value would be unreadable
        text = self.text[max(region.begin, self.from_prompt) if is_plain else region.begin : region.stop]
        if is_plain and self.hidden is not None:
            text = self.hidden.sub("", text)
        return region.field.value(text, region.captures)

    def _calls(self, value: object) -> Sequence[ReadCall]:
        """Return the calls of a region, which holds one call or a list of calls."""
        return [self._call(each) for each in (value if isinstance(value, list) else [value])]

    def _call(self, value: object) -> ReadCall:
        function = value.get("function", value) if isinstance(value, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(value, dict) or not isinstance(function, dict) or not isinstance(name, str) or not name:
            raise Unreadable
        given, id_ = function.get("arguments", {}), value.get("id")
        arguments = given if isinstance(given, str) else _json(self._typed(name, given))
        return ReadCall(name, arguments, id_ if isinstance(id_, str) and id_ else None)

    def _typed(self, name: str, arguments: object) -> object:
        """Return the arguments with each string converted to the type in the tool's schema."""
        parameters = self.question.tools.get(name)
        if parameters is None or not isinstance(arguments, dict):
            return arguments
        return {key: _typed(value, parameters, key) for key, value in arguments.items()}


def _typed(value: object, parameters: Mapping[str, Any], key: str) -> object:
    types = types_of(parameters, key)
    return value if types is None or not isinstance(value, str) else json.loads(value_in_json(value, types))


def _json(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise Unreadable from error


def _as_text(value: object) -> str:
    """Return a field of the message as text of the answer."""
    if value is None or isinstance(value, str):
        return value or ""
    return "\n".join(map(_as_text, value)) if isinstance(value, list) else _json(value)


@dataclass
class _Parts:
    """A text assembled from several regions."""

    text: str = ""
    _is_joined: bool = False  # whether the text ends with a region's text

    def add(self, text: str, between: str | None) -> None:
        """Append the text of a region after `between`; None: the region is a paragraph of its own."""
        if text and self._is_joined:
            self.text += "\n" if between is None else between
        self.text += text
        self._is_joined |= bool(text)

    def add_as_it_stands(self, text: str) -> None:
        """Append text of the answer without a separator."""
        self.text += text
        self._is_joined = False
