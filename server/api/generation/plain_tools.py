"""Tools for models whose chat template knows none: written into the conversation, in Hermes' format.

The model was not trained for it and may ignore them; a call that the request demands is well formed all the same, as it
is constrained to the format. Refusing was rejected: clients send tools to any model, and say which with `tool_choice`.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from numaserve.server.tools.format import Call
from numaserve.server.tools.formats.hermes import FORMAT
from numaserve.server.tools.types import Tool

_EXAMPLE = Call(name="NAME", arguments={"ARGUMENT": "VALUE"})
_Message = Mapping[str, Any]


def in_plain_text(messages: Sequence[_Message], tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """The conversation with `tools`, calls and results as texts of roles that every template knows."""
    plain: list[dict[str, Any]] = []
    # Several results follow each other, and many templates want user and assistant in turns.
    for is_result, group in groupby(messages, lambda message: message["role"] == "tool"):
        together = list(group)
        plain += [_results(together)] if is_result else map(_with_calls, together)
    if not tools:
        return plain
    offer = _offer(tools)
    if plain and plain[0]["role"] == "system":
        return [{**plain[0], "content": f"{plain[0]['content']}\n\n{offer}"}, *plain[1:]]
    return [{"role": "system", "content": offer}, *plain]


def _offer(tools: Sequence[Tool]) -> str:
    functions = "\n".join(json.dumps(described(tool), ensure_ascii=False) for tool in tools)
    return (
        f"You can call these functions, each given as a line of JSON:\n<tools>\n{functions}\n</tools>\n"
        f"To call one, write nothing but:\n{FORMAT.render([_EXAMPLE])}"
    )


def described(tool: Tool) -> dict[str, object]:
    """A tool as chat templates know it."""
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters or _NO_PARAMETERS}
    return {"type": "function", "function": function}


_NO_PARAMETERS = {"type": "object", "properties": {}}


def _results(messages: Sequence[_Message]) -> dict[str, Any]:
    texts = [f"<tool_response>\n{message['content']}\n</tool_response>" for message in messages]
    return {"role": "user", "content": "\n".join(texts)}


def _with_calls(message: _Message) -> dict[str, Any]:
    given = message.get("tool_calls")
    if not given:
        return dict(message)
    functions = [call["function"] for call in given]
    text = FORMAT.render([Call(name=each["name"], arguments=each["arguments"]) for each in functions])
    content = f"{message['content']}\n{text}" if message["content"] else text
    return {"role": message["role"], "content": content}
