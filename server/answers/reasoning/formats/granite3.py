"""Granite 3.3, which marks its answer too."""

from numaserve.server.answers.reasoning.format import ReasoningFormat

FORMAT = ReasoningFormat(
    name="granite3",
    start="<think>",
    end="</think>",
    in_template=("<think></think>", "<response></response>"),
    answer_start="<response>",
    answer_end="</response>",
)
