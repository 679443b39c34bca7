"""Gemma 4: names and values in braces, with a token for quotes."""

from numaserve.server.answers.tools.braced_format import BracedFormat

FORMAT = BracedFormat(
    name="gemma4",
    in_template=("<|tool_call>call:",),
    triggers=("<|tool_call>",),
    tokens=("<|tool_call>", "<tool_call|>", '<|"|>'),
    call_begin="<|tool_call>call:",
    call_end="<tool_call|>",
    quote='<|"|>',
)
