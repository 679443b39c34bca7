"""gpt-oss: thoughts are messages of the channel analysis."""

from numaserve.server.answers.reasoning.format import ReasoningFormat

FORMAT = ReasoningFormat(
    name="gpt_oss",
    start="<|channel|>analysis<|message|>",
    end="<|end|>",
    in_template=("<|channel|>", "<|message|>", "<|call|>"),
    channels="harmony",
)
