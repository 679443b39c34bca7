"""Seed-OSS: as Qwen3-Coder, in a tag of its own."""

from numaserve.server.answers.tools.tagged_format import TaggedFormat

FORMAT = TaggedFormat(
    name="seed_oss",
    in_template=("<seed:tool_call>", "<function=", "<parameter="),
    triggers=("<seed:tool_call>",),
    tokens=("<seed:tool_call>", "</seed:tool_call>"),
    call_begin="<seed:tool_call>\n<function=",
    name_end=">\n",
    key_begin="<parameter=",
    key_end=">",
    value_end="</parameter>\n",
    call_end="</function>\n</seed:tool_call>",
)
