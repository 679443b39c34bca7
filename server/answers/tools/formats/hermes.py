"""Hermes 2 Pro and later, Qwen2.5, Qwen3, Granite 4 and others: JSON in tags of XML."""

from numaserve.server.answers.tools.json_format import JsonFormat

FORMAT = JsonFormat(
    name="hermes",
    in_template=("<tool_call>", '"arguments'),
    not_in_template=("<tool_calls>",),
    triggers=("<tool_call>",),
    tokens=("<tool_call>", "</tool_call>"),
    call_begin="<tool_call>\n",
    call_end="\n</tool_call>",
)
