"""DeepSeek V3 and R1: arguments in a block of Markdown."""

from numaserve.server.answers.tools.marked_format import MarkedFormat

FORMAT = MarkedFormat(
    name="deepseek_v3",
    in_template=("<｜tool▁call▁begin｜>", "```json"),
    triggers=("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"),
    tokens=(
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁sep｜>",
    ),
    begin="<｜tool▁calls▁begin｜>",
    end="<｜tool▁calls▁end｜>",
    call_begin="<｜tool▁call▁begin｜>",
    arguments_begin="\n```json\n",
    call_end="\n```<｜tool▁call▁end｜>",
    head="function<｜tool▁sep｜>{name}",
    head_pattern="[^｜]*<｜tool▁sep｜>(?P<name>.+)",
)
