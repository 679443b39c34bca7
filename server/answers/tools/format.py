"""The interface of a format of tool calls."""

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numaserve.server.answers.tools.call_grammar import Form, const, sequence, tag, tags, triggered
from numaserve.server.answers.tools.scanner import Scanner, Steps
from numaserve.server.answers.tools.sink import Sink
from numaserve.server.answers.tools.types import Tool


@dataclass(frozen=True, kw_only=True)
class Call:
    """A complete call: the input of `ToolFormat.render`."""

    name: str
    arguments: dict[str, Any]
    id: str = ""


@dataclass(frozen=True, kw_only=True)
class ToolFormat(ABC):
    """The format in which a family of models writes calls.

    A chat template of the family contains all texts of `in_template` and none of `not_in_template`. `triggers` begin
    calls anywhere in an answer. `bare` texts begin calls only at the beginning of an answer, and only calls of tools in
    the request. `tokens` are texts that may be special tokens of the model; the parser has to see them. `id_length` is
    the number of letters and digits that the template requires of ids; None: any id. `whole`: the format separates all
    parts of an answer, thoughts included, and is needed without tools as well.

    Calls are written between `begin` and `end`, with `separator` between two of them. Readers accept any white space,
    or none, where the format has some, and calls without their end.
    """

    name: str
    in_template: tuple[str, ...]
    not_in_template: tuple[str, ...] = ()
    triggers: tuple[str, ...] = ()
    bare: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()
    id_length: int | None = None
    whole: bool = False
    begin: str = ""
    separator: str = "\n"
    end: str = ""

    def matches(self, template: str) -> bool:
        """Return whether a model with this chat template uses this format."""
        return all(text in template for text in self.in_template) and not any(
            text in template for text in self.not_in_template
        )

    @abstractmethod
    def read(self, scanner: Scanner, sink: Sink, trigger: str) -> Steps[None]:
        """Read the text after `trigger`, "" for a bare call, up to where the answer may go on.

        Raises `NotACall` if the text that the scanner has recorded belongs to the answer.
        """

    @abstractmethod
    def render_call(self, call: Call, number: int) -> str:
        """Return the text of a call that has this number in the answer."""

    def render(self, calls: Sequence[Call]) -> str:
        """Return the text that a model writes for `calls`, which is not empty."""
        texts = (self.render_call(call, number) for number, call in enumerate(calls))
        return f"{self.begin}{self.separator.join(texts)}{self.end}"

    @abstractmethod
    def call_form(self, tool: Tool) -> Form:
        """Return the form of a call of `tool`; a tag that begins with the first trigger if `begin` is empty."""

    def grammar(self, tools: Sequence[Tool], required: bool, parallel: bool) -> str | None:
        """Return the structural tag, in xgrammar's form, of answers that call `tools`, which is not empty.

        If a call is required, the answer is a call from its first token on. Otherwise the answer is free text up to the
        trigger; the tag is None if no text alone is a trigger. Without `parallel` there is one call. The same tools
        give the same text.
        """
        form = self._form([self.call_form(tool) for tool in tools], required, parallel)
        return None if form is None else json.dumps({"type": "structural_tag", "format": form}, ensure_ascii=False)

    def answer_form(self, form: Form) -> Form:
        """Return the form of an answer without calls whose text has the form `form`."""
        return form

    def _form(self, each: list[Form], required: bool, parallel: bool) -> Form | None:
        calls = tags(each, self.separator, at_least_one=True, only_one=not parallel)
        if required:
            return sequence(const(self.begin), calls, const(self.end))
        if self.bare:
            return None
        if self.begin:
            return triggered(self.triggers[0], [tag(self.begin, calls, self.end)], only_one=True)
        return triggered(self.triggers[0], each, only_one=not parallel)
