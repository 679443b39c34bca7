"""Granite 3: a list of objects. Granite 4 writes calls as Hermes does."""

from numaserve.server.answers.tools.json_format import JsonFormat

FORMAT = JsonFormat(
    name="granite3",
    in_template=("<|start_of_role|>", "<|tool_call|>"),
    triggers=("<|tool_call|>", "<tool_call>"),
    tokens=("<|tool_call|>", "<tool_call>"),
    begin="<|tool_call|>[",
    separator=", ",
    end="]",
)
