"""Apriel: a list of objects in tags."""

from numaserve.server.answers.tools.json_format import JsonFormat

FORMAT = JsonFormat(
    name="apriel",
    in_template=("<tool_calls>[", "]</tool_calls>"),
    triggers=("<tool_calls>",),
    tokens=("<tool_calls>", "</tool_calls>"),
    begin="<tool_calls>[",
    separator=", ",
    end="]</tool_calls>",
)
