"""A change of what clients send: a model that is asked something calls the tool that is named, and then answers.

No small model calls tools of its own accord, and clients leave the choice to the model.
"""

from collections.abc import Mapping
from typing import Any

Body = dict[str, Any]


def forced(path: str, body: Body, tool: str, file: str = "") -> Body:
    """`body`, which demands a call of `tool` unless the last turn has the result of one.

    With a `file` the call is for this file.
    """
    named = {_name(each) for each in body.get("tools") or ()}
    if tool not in named or _ends_with_a_result(body.get("input") or body.get("messages") or []):
        return body
    if file:
        body = body | {"tools": [_for_file(each, file) for each in body["tools"]]}
    if path.startswith("/v1/messages"):
        return body | {"tool_choice": {"type": "tool", "name": tool}}
    if path.startswith("/v1/responses"):
        return body | {"tool_choice": {"type": "function", "name": tool}}
    return body | {"tool_choice": {"type": "function", "function": {"name": tool}}}


def _for_file(tool: dict[str, Any], file: str) -> dict[str, Any]:
    """Return a tool of /v1/messages whose parameter for a file, if it has one, takes this file alone."""
    schema = tool.get("input_schema", {})
    properties = schema.get("properties", {})
    if "file_path" not in properties:
        return tool
    return tool | {"input_schema": schema | {"properties": properties | {"file_path": {"const": file}}}}


def _name(tool: Mapping[str, Any]) -> str | None:
    if tool.get("type") == "namespace":
        return None
    return tool.get("name") or tool.get("function", {}).get("name")


def _ends_with_a_result(turns: object) -> bool:
    if not isinstance(turns, list) or not turns:
        return False
    for turn in reversed(turns):
        if turn.get("role") == "tool" or turn.get("type") == "function_call_output":
            return True
        content = turn.get("content")
        if isinstance(content, list) and any(block.get("type") == "tool_result" for block in content):
            return True
        if turn.get("role") == "user" and not _is_a_reminder(content):
            return False
    return False


def _is_a_reminder(content: object) -> bool:
    return isinstance(content, str) and content.startswith("<system-reminder>")
