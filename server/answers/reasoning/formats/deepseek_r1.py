"""DeepSeek-R1, whose answers begin with a thought, with or without an opening mark."""

from numaserve.server.answers.reasoning.format import ReasoningFormat

FORMAT = ReasoningFormat(
    name="deepseek_r1",
    start="<think>",
    end="</think>",
    in_template=("<｜Assistant｜><think>\\n",),
    begins_inside=True,
)
