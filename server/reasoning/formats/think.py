"""Thoughts in <think>: DeepSeek-R1 and V3.1, Qwen3, QwQ, GLM-4.5, MiniMax-M2, Kimi K2 Thinking, SmolLM3 and others."""

from numaserve.server.reasoning.format import ReasoningFormat

FORMAT = ReasoningFormat(name="think", start="<think>", end="</think>", in_template=("</think>",))
