"""Kimi K2 Thinking, which begins calls without closing its thought."""

from numaserve.server.answers.reasoning.format import ReasoningFormat

FORMAT = ReasoningFormat(
    name="kimi_k2",
    start="<think>",
    end="</think>",
    in_template=("</think>", "<|tool_calls_section_begin|>"),
    calls_end_it=True,
)
