"""Llama 4 and Llama 3.2 with templates for calls written as in Python, bare or between special tokens."""

from numaserve.server.answers.tools.pythonic_format import PythonicFormat

FORMAT = PythonicFormat(
    name="pythonic",
    in_template=("func_name1(params_name1=params_value1",),
    triggers=("<|python_start|>",),
    bare=("[",),
    tokens=("<|python_start|>", "<|python_end|>"),
    begin="[",
    end="]<|python_end|>",
)
