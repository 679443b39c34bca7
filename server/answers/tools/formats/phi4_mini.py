"""Phi-4-mini: a list of objects, after a word or in special tokens."""

from numaserve.server.answers.tools.json_format import JsonFormat

FORMAT = JsonFormat(
    name="phi4_mini",
    in_template=("<|tool|>", "<|/tool|>"),
    triggers=("functools[", "<|tool_call|>"),
    tokens=("<|tool_call|>", "<|/tool_call|>"),
    begin="functools[",
    separator=", ",
    end="]",
    after="<|/tool_call|>",
)
