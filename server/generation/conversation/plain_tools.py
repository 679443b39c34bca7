"""Tools for models whose chat template knows none: written into the conversation.

The model was not trained for them and may ignore them; a call that the request demands is well formed all the same, as
it is constrained to the format. Refusing was rejected: clients send tools to any model, and say which with
`tool_choice`.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from numaserve.server.answers.tools.format import Call, ToolFormat
from numaserve.server.answers.tools.types import Tool

_EXAMPLE = Call(name="NAME", arguments={"ARGUMENT": "VALUE"})
_Message = Mapping[str, Any]


def in_plain_text(messages: Sequence[_Message], tools: Sequence[Tool], calls: ToolFormat) -> list[dict[str, Any]]:
    """The conversation with `tools`, calls and results as texts of roles that every template knows.

    The format of `calls` is the one in which the answer is read.
    """
    plain: list[dict[str, Any]] = []
    # Several results follow each other, and many templates want user and assistant in turns.
    for is_result, group in groupby(messages, lambda message: message["role"] == "tool"):
        together = list(group)
        plain += [_results(together)] if is_result else (_with_calls(each, calls) for each in together)
    if not tools:
        return plain
    offer = _offer(tools, calls)
    if plain and plain[0]["role"] == "system":
        return [{**plain[0], "content": f"{plain[0]['content']}\n\n{offer}"}, *plain[1:]]
    return [{"role": "system", "content": offer}, *plain]


def _offer(tools: Sequence[Tool], calls: ToolFormat) -> str:
    functions = "\n".join(json.dumps(described(tool), ensure_ascii=False) for tool in tools)
    return (
        f"You can call these functions, each given as a line of JSON:\n<tools>\n{functions}\n</tools>\n"
        f"To call one, write nothing but:\n{calls.render([_EXAMPLE])}"
    )


def described(tool: Tool) -> dict[str, object]:
    """A tool as chat templates know it."""
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters or _NO_PARAMETERS}
    return {"type": "function", "function": function}


_NO_PARAMETERS = {"type": "object", "properties": {}}


def _results(messages: Sequence[_Message]) -> dict[str, Any]:
    texts = [f"<tool_response>\n{message['content']}\n</tool_response>" for message in messages]
    return {"role": "user", "content": "\n".join(texts)}


def _with_calls(message: _Message, calls: ToolFormat) -> dict[str, Any]:
    given = message.get("tool_calls")
    if not given:
        return dict(message)
    functions = [call["function"] for call in given]
    text = calls.render([Call(name=each["name"], arguments=each["arguments"]) for each in functions])
    content = f"{message['content']}\n{text}" if message["content"] else text
    return {"role": message["role"], "content": content}
