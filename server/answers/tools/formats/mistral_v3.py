"""Mistral's formats up to the tokenizer v7: a list of objects. The model's ids come after the arguments and are
ignored."""

from numaserve.server.answers.tools.json_format import JsonFormat

FORMAT = JsonFormat(
    name="mistral_v3",
    in_template=("[TOOL_CALLS]",),
    not_in_template=("[ARGS]",),
    triggers=("[TOOL_CALLS]",),
    tokens=("[TOOL_CALLS]",),
    id_length=9,
    begin="[TOOL_CALLS][",
    separator=", ",
    end="]",
)
