"""MiMo-V2: as Qwen3-Coder, with values between their tags exactly as they are."""

from numaserve.server.answers.tools.tagged_format import TaggedFormat

FORMAT = TaggedFormat(
    name="mimo",
    in_template=("<tool_call>", "<function=", "<parameter=", "'</parameter>"),
    triggers=("<tool_call>",),
    tokens=("<tool_call>", "</tool_call>"),
    call_begin="<tool_call>\n<function=",
    name_end=">\n",
    key_begin="<parameter=",
    key_end=">",
    value_end="</parameter>\n",
    call_end="</function>\n</tool_call>",
)
