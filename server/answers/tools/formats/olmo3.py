"""OLMo 3: calls written as in Python, one a line, in tags."""

from numaserve.server.answers.tools.pythonic_format import PythonicFormat

FORMAT = PythonicFormat(
    name="olmo3",
    in_template=("<function_calls>", "<functions>"),
    triggers=("<function_calls>",),
    tokens=("<function_calls>", "</function_calls>"),
    begin="<function_calls>",
    separator="\n",
    end="</function_calls>",
    in_lines=True,
)
