"""Llama 4 as published: a bare object, or several after `<|python_start|>`."""

from numaserve.server.answers.tools.json_call import Keys
from numaserve.server.answers.tools.json_format import JsonFormat

FORMAT = JsonFormat(
    name="llama4_json",
    in_template=("dictionary of argument name and its value", "<|header_start|>"),
    triggers=("<|python_start|>",),
    bare=("{",),
    tokens=("<|python_start|>", "<|python_end|>"),
    separator="; ",
    after="<|python_end|>",
    keys=Keys(arguments=("parameters", "arguments")),
)
