"""Tools in plain text, for models whose chat template has no tools.

The model was not trained for tools and may ignore them. A call that the request requires is nevertheless well-formed,
as it is constrained to the format. Refusing such requests was rejected: clients send tools to any model, and require
calls with `tool_choice`.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from numaserve.server.answers.tools.format import Call, ToolFormat
from numaserve.server.answers.tools.types import Tool
from numaserve.server.generation.conversation.content import joined

_EXAMPLE = Call(name="NAME", arguments={"ARGUMENT": "VALUE"})
_Message = Mapping[str, Any]
_Described = Mapping[str, object]


def in_plain_text(messages: Sequence[_Message], tools: Sequence[_Described], calls: ToolFormat) -> list[dict[str, Any]]:
    """Return the conversation with calls, results and the `described` tools as texts of roles that all templates know.

    The answer is parsed in the format of `calls`.
    """
    plain: list[dict[str, Any]] = []
    # Several results follow each other, and many templates require user and assistant to alternate.
    for is_result, group in groupby(messages, lambda message: message["role"] == "tool"):
        together = list(group)
        plain += [_results(together)] if is_result else (_with_calls(each, calls) for each in together)
    if not tools:
        return plain
    offer = _offer(tools, calls)
    if plain and plain[0]["role"] == "system":
        return [{**plain[0], "content": joined([plain[0]["content"], offer], "\n\n")}, *plain[1:]]
    return [{"role": "system", "content": offer}, *plain]


def _offer(tools: Sequence[_Described], calls: ToolFormat) -> str:
    functions = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    return (
        f"You can call these functions, each given as a line of JSON:\n<tools>\n{functions}\n</tools>\n"
        f"To call one, write nothing but:\n{calls.render([_EXAMPLE])}"
    )


def described(tool: Tool) -> dict[str, object]:
    """Return a tool in the format of chat templates."""
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters or _NO_PARAMETERS}
    return {"type": "function", "function": function}


_NO_PARAMETERS = {"type": "object", "properties": {}}


def _results(messages: Sequence[_Message]) -> dict[str, Any]:
    results = [joined(["<tool_response>\n", message["content"], "\n</tool_response>"], "") for message in messages]
    return {"role": "user", "content": joined(results)}


def _with_calls(message: _Message, calls: ToolFormat) -> dict[str, Any]:
    given = message.get("tool_calls")
    if not given:
        return dict(message)
    functions = [call["function"] for call in given]
    text = calls.render([Call(name=each["name"], arguments=each["arguments"]) for each in functions])
    content = joined([message["content"], text]) if message["content"] else text
    return {"role": message["role"], "content": content}
