"""OLMo 3, whose prompts open a thought that templates do not close."""

from numaserve.server.answers.reasoning.format import ReasoningFormat

FORMAT = ReasoningFormat(
    name="olmo3",
    start="<think>",
    end="</think>",
    in_template=("<think>", "<functions>"),
    not_in_template=("</think>",),
)
