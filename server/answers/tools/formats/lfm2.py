"""LFM2: calls written as in Python, in special tokens."""

from numaserve.server.answers.tools.pythonic_format import PythonicFormat

FORMAT = PythonicFormat(
    name="lfm2",
    in_template=("<|tool_call_start|>",),
    triggers=("<|tool_call_start|>",),
    tokens=("<|tool_call_start|>", "<|tool_call_end|>"),
    begin="<|tool_call_start|>[",
    end="]<|tool_call_end|>",
)
