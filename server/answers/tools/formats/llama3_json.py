"""Llama 3.1, 3.2 and 3.3: a bare object, or several after `<|python_tag|>`."""

from numaserve.server.answers.tools.json_call import Keys
from numaserve.server.answers.tools.json_format import JsonFormat

FORMAT = JsonFormat(
    name="llama3_json",
    in_template=("dictionary of argument name and its value", "<|start_header_id|>"),
    triggers=("<|python_tag|>",),
    bare=("{",),
    tokens=("<|python_tag|>",),
    separator="; ",
    keys=Keys(arguments=("parameters", "arguments")),
)
