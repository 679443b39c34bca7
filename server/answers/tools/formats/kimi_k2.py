"""Kimi K2: the head is an id that holds the name, such as functions.get_weather:0."""

from numaserve.server.answers.tools.marked_format import MarkedFormat

FORMAT = MarkedFormat(
    name="kimi_k2",
    in_template=("<|tool_call_argument_begin|>",),
    triggers=("<|tool_calls_section_begin|>", "<|tool_call_begin|>"),
    tokens=(
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        "<|tool_call_begin|>",
        "<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
    ),
    begin="<|tool_calls_section_begin|>",
    separator="",
    end="<|tool_calls_section_end|>",
    call_begin="<|tool_call_begin|>",
    arguments_begin="<|tool_call_argument_begin|>",
    call_end="<|tool_call_end|>",
    head="functions.{name}:{number}",
    head_pattern=r"(?P<id>(?:functions\.)?(?P<name>.+?)(?::[0-9]+)?)",
)
