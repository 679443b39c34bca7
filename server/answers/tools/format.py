"""What each format of tool calls says of itself."""

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
    """A whole call: what `ToolFormat.render` writes."""

    name: str
    arguments: dict[str, Any]
    id: str = ""


@dataclass(frozen=True, kw_only=True)
class ToolFormat(ABC):
    """How a family of models writes calls.

    `in_template` are texts that a chat template of the family has, all of them, and `not_in_template` texts that it
    has not. `triggers` begin calls anywhere in an answer, `bare` only where an answer begins with them, and then only
    of tools that the request has. `tokens` are texts that may be special tokens of the model: the parser must see them.
    `id_length` is the number of letters and digits that the template demands of ids; None where any id will do.
    `whole` says that the format tells all of an answer apart, its thoughts too, and is needed without tools as well.

    Calls are written between `begin` and `end`, with `separator` between two of them. Readers take any white space
    where the format has some, or none, and calls without their end.
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
        """Whether a model with this chat template writes calls so."""
        return all(text in template for text in self.in_template) and not any(
            text in template for text in self.not_in_template
        )

    @abstractmethod
    def read(self, scanner: Scanner, sink: Sink, trigger: str) -> Steps[None]:
        """Read what follows `trigger`, "" for a bare call, up to where the answer may go on.

        Raises `NotACall` where what the scanner has recorded is text of the answer.
        """

    @abstractmethod
    def render_call(self, call: Call, number: int) -> str:
        """The text of the call number `number` of an answer."""

    def render(self, calls: Sequence[Call]) -> str:
        """The text that a model writes for `calls`, of which there is at least one."""
        texts = (self.render_call(call, number) for number, call in enumerate(calls))
        return f"{self.begin}{self.separator.join(texts)}{self.end}"

    @abstractmethod
    def call_form(self, tool: Tool) -> Form:
        """What a call of `tool` must look like; a tag that begins with the first trigger where `begin` is empty."""

    def grammar(self, tools: Sequence[Tool], required: bool, parallel: bool) -> str | None:
        """The structural tag, in xgrammar's form, of answers that call `tools`, of which there is at least one.

        An answer that must call is a call from its first token on. Otherwise it is free up to the trigger; None where
        no text is a trigger by itself. Without `parallel` there is one call. The text is the same for the same tools.
        """
        form = self._form([self.call_form(tool) for tool in tools], required, parallel)
        return None if form is None else json.dumps({"type": "structural_tag", "format": form}, ensure_ascii=False)

    def answer_form(self, form: Form) -> Form:
        """What an answer without calls looks like whose text is `form`."""
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
