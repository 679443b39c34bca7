"""Seed-OSS."""

from numaserve.server.answers.reasoning.format import ReasoningFormat

FORMAT = ReasoningFormat(
    name="seed_oss", start="<seed:think>", end="</seed:think>", in_template=("<seed:think>", "</seed:think>")
)
