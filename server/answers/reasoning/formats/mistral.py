"""Magistral, and Ministral 3 Reasoning."""

from numaserve.server.answers.reasoning.format import ReasoningFormat

FORMAT = ReasoningFormat(
    name="mistral", start="[THINK]", end="[/THINK]", in_template=("[THINK]", "[/THINK]"), anywhere=True
)
