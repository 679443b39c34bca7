"""Command A Reasoning and Command R7B."""

from numaserve.server.answers.reasoning.format import ReasoningFormat

FORMAT = ReasoningFormat(
    name="cohere",
    start="<|START_THINKING|>",
    end="<|END_THINKING|>",
    in_template=("<|START_THINKING|>", "<|END_THINKING|>"),
    answer_start="<|START_RESPONSE|>",
    answer_end="<|END_RESPONSE|>",
)
