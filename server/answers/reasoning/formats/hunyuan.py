"""Hunyuan A13B, which marks its answer too."""

from numaserve.server.answers.reasoning.format import ReasoningFormat

FORMAT = ReasoningFormat(
    name="hunyuan",
    start="<think>",
    end="</think>",
    in_template=("<think>", "</answer>"),
    answer_start="<answer>",
    answer_end="</answer>",
)
