"""Qwen3-Coder and Qwen3.5, Nemotron 3, Step 3.5: tags that contain the name of the function or parameter."""

from numaserve.server.answers.tools.tagged_format import TaggedFormat

FORMAT = TaggedFormat(
    name="qwen3_coder",
    in_template=("<tool_call>", "<function=", "<parameter="),
    not_in_template=("'</parameter>",),
    # Models often omit the outer tag.
    triggers=("<tool_call>", "<function="),
    tokens=("<tool_call>", "</tool_call>"),
    call_begin="<tool_call>\n<function=",
    name_end=">\n",
    key_begin="<parameter=",
    key_end=">\n",
    value_end="\n</parameter>\n",
    call_end="</function>\n</tool_call>",
)
