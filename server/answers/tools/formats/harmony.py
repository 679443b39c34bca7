"""gpt-oss: messages in channels. Thoughts, calls and the answer are all messages.

This format therefore reads the thoughts too. A message is a head, <|message|>, and text up to <|end|>, <|call|> or
<|return|>. The head names the channel and, for a call, the recipient. The channel analysis is a thought, a message to a
function is a call, and any other message is the answer.
"""

import json
import re
from dataclasses import dataclass

from numaserve.server.answers.tools.call_grammar import (
    ANY_TEXT,
    Form,
    arguments_schema,
    one_of,
    schema,
    sequence,
    tag,
    tags,
)
from numaserve.server.answers.tools.format import Call, ToolFormat
from numaserve.server.answers.tools.json_call import read_arguments
from numaserve.server.answers.tools.scanner import NotACall, Scanner, Steps, markers
from numaserve.server.answers.tools.sink import Sink
from numaserve.server.answers.tools.types import Tool

_MESSAGE, _CHANNEL, _START = "<|message|>", "<|channel|>", "<|start|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_HEAD_ENDS = markers(_MESSAGE, *_ENDS)
# A message may lack its end; the start of the next one then ends it.
_BODY_ENDS = markers(*_ENDS, _START, _CHANNEL)
_RECIPIENT = re.compile(r"to=(?:functions\.)?([^\s<]+)")
_NAMED_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")

_THOUGHT = tag(f"{_CHANNEL}analysis{_MESSAGE}", ANY_TEXT, f"<|end|>{_START}assistant")
_THOUGHTS = tags([_THOUGHT], "", at_least_one=False)


@dataclass(frozen=True, kw_only=True)
class HarmonyFormat(ToolFormat):
    """The format of gpt-oss. A prompt ends with <|start|>assistant, so an answer begins in a head."""

    def read(self, scanner: Scanner, sink: Sink, trigger: str) -> Steps[None]:
        """See `ToolFormat`."""
        pieces = [trigger]
        if (yield from scanner.until(_HEAD_ENDS, pieces.append)) != _MESSAGE:
            raise NotACall
        head = "".join(pieces)
        recipient = _RECIPIENT.search(head)
        channel = _NAMED_CHANNEL.search(head)
        if recipient and (recipient[1] in sink.tools or "to=functions." in head):
            yield from self._call(scanner, sink, recipient[1])
        elif channel and channel[1] == "analysis":
            yield from scanner.before(_BODY_ENDS, sink.reasoning)
            sink.end_thought()
        else:
            yield from scanner.before(_BODY_ENDS, sink.content)
        yield from scanner.one_of(*_ENDS)
        scanner.forget()

    def _call(self, scanner: Scanner, sink: Sink, name: str) -> Steps[None]:
        sink.begin_call(name)
        yield from scanner.space()
        if (yield from read_arguments(scanner, sink, markers(*_ENDS))):
            yield from scanner.space()

    def render_call(self, call: Call, number: int) -> str:
        """See `ToolFormat`."""
        head = f"{'<|start|>assistant' if number else ''} to=functions.{call.name}<|channel|>commentary json<|message|>"
        return f"{head}{json.dumps(call.arguments, ensure_ascii=False)}<|call|>"

    def call_form(self, tool: Tool) -> Form:
        """See `ToolFormat`. The call's end is an end token of the model, which every grammar allows at its own end."""
        head = f"<|channel|>commentary to=functions.{tool.name} <|constrain|>json<|message|>"
        return tag(head, schema(arguments_schema(tool)), "")

    def answer_form(self, form: Form) -> Form:
        """See `ToolFormat`. The text is a message after the thoughts."""
        return sequence(_THOUGHTS, tag(f"{_CHANNEL}final{_MESSAGE}", form, ""))

    def _form(self, each: list[Form], required: bool, parallel: bool) -> Form:
        """See `ToolFormat`. After the thoughts comes one call or the answer; models of the family never write two
        calls."""
        final = tag(f"{_CHANNEL}final{_MESSAGE}", ANY_TEXT, "")
        return sequence(_THOUGHTS, one_of(*each) if required else one_of(*each, final))


FORMAT = HarmonyFormat(
    name="harmony",
    in_template=(_CHANNEL, _MESSAGE, "<|call|>"),
    triggers=(_CHANNEL, _START),
    bare=("to=",),
    tokens=(_START, _CHANNEL, _MESSAGE, "<|constrain|>", *_ENDS),
    whole=True,
    separator="",
)
