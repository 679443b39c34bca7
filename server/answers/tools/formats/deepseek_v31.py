"""DeepSeek V3.1: the name and bare arguments."""

from numaserve.server.answers.tools.marked_format import MarkedFormat

FORMAT = MarkedFormat(
    name="deepseek_v31",
    in_template=("<｜tool▁call▁begin｜>",),
    not_in_template=("```json",),
    triggers=("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"),
    tokens=(
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁sep｜>",
    ),
    begin="<｜tool▁calls▁begin｜>",
    separator="",
    end="<｜tool▁calls▁end｜>",
    call_begin="<｜tool▁call▁begin｜>",
    arguments_begin="<｜tool▁sep｜>",
    call_end="<｜tool▁call▁end｜>",
)
