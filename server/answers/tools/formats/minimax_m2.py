"""MiniMax-M2: tags with the name as an attribute."""

from numaserve.server.answers.tools.tagged_format import TaggedFormat

FORMAT = TaggedFormat(
    name="minimax_m2",
    in_template=("<minimax:tool_call>", "<invoke name="),
    triggers=("<minimax:tool_call>",),
    tokens=("<minimax:tool_call>", "</minimax:tool_call>"),
    begin="<minimax:tool_call>\n",
    separator="",
    end="</minimax:tool_call>",
    call_begin='<invoke name="',
    name_end='">\n',
    key_begin='<parameter name="',
    key_end='">',
    value_end="</parameter>\n",
    call_end="</invoke>\n",
)
