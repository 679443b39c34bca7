"""Mistral's formats since the tokenizer v11: a token before each name and one before its arguments."""

from numaserve.server.answers.tools.marked_format import MarkedFormat

FORMAT = MarkedFormat(
    name="mistral_v11",
    in_template=("[TOOL_CALLS]", "[ARGS]"),
    triggers=("[TOOL_CALLS]",),
    tokens=("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),
    id_length=9,
    separator="",
    call_begin="[TOOL_CALLS]",
    arguments_begin="[ARGS]",
    head_pattern=r"(?P<name>[^\[]+)(?:\[CALL_ID\](?P<id>.*))?",
)
