"""FunctionGemma: names and values in braces, with a token for quotes."""

from numaserve.server.answers.tools.braced_format import BracedFormat

FORMAT = BracedFormat(
    name="functiongemma",
    in_template=("<start_function_call>call:",),
    triggers=("<start_function_call>",),
    tokens=("<start_function_call>", "<end_function_call>", "<escape>"),
    call_begin="<start_function_call>call:",
    call_end="<end_function_call>",
    quote="<escape>",
)
