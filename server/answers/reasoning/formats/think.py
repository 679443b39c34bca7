"""Thoughts in `<think>`: Qwen3, QwQ, DeepSeek V3.1, GLM-4.5, MiniMax-M2, SmolLM3 and others."""

from numaserve.server.answers.reasoning.format import ReasoningFormat

FORMAT = ReasoningFormat(
    name="think",
    start="<think>",
    end="</think>",
    in_template=("</think>",),
    not_in_template=("<|tool_calls_section_begin|>", "<｜Assistant｜><think>\\n", "<response></response>", "</answer>"),
)
