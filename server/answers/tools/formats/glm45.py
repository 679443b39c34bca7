"""GLM-4.5 to 4.7: the name, and tags for keys and values."""

from numaserve.server.answers.tools.tagged_format import TaggedFormat

FORMAT = TaggedFormat(
    name="glm45",
    in_template=("<tool_call>", "<arg_key>", "<arg_value>"),
    triggers=("<tool_call>",),
    tokens=("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    call_begin="<tool_call>",
    name_end="\n",
    key_begin="<arg_key>",
    key_end="</arg_key>\n<arg_value>",
    value_end="</arg_value>\n",
    call_end="</tool_call>",
)
