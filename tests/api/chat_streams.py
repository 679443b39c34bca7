"""What the deltas of a chat's stream make, as clients put them together."""

import json
from typing import Any


def joined_stream(text: str) -> dict[str, Any]:
    """The message, with names and arguments of its calls."""
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    for line in text.split("\n\n"):
        if not line.startswith("data: {"):
            continue
        for choice in json.loads(line.removeprefix("data: "))["choices"]:
            delta = choice["delta"]
            message["content"] += delta.get("content") or ""
            message["reasoning_content"] += delta.get("reasoning_content") or ""
            for call in delta.get("tool_calls", ()):
                if "id" in call:
                    message["tool_calls"].append({"name": call["function"]["name"], "arguments": ""})
                message["tool_calls"][call["index"]]["arguments"] += call["function"]["arguments"]
    return message
