"""Command R7B and Command A: a list of objects with field names of their own. The model's ids only count calls and are
ignored."""

from numaserve.server.answers.tools.json_call import Keys
from numaserve.server.answers.tools.json_format import JsonFormat

FORMAT = JsonFormat(
    name="cohere",
    in_template=("<|START_ACTION|>", "tool_name"),
    triggers=("<|START_ACTION|>",),
    tokens=("<|START_ACTION|>", "<|END_ACTION|>"),
    begin="<|START_ACTION|>[",
    separator=", ",
    end="]<|END_ACTION|>",
    keys=Keys(name="tool_name", arguments=("parameters",)),
)
