"""Gemma 4: a channel for thoughts, also between calls."""

from numaserve.server.answers.reasoning.format import ReasoningFormat

FORMAT = ReasoningFormat(
    name="gemma4", start="<|channel>thought\n", end="<channel|>", in_template=("<|channel>thought",), anywhere=True
)
