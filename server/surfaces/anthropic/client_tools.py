"""Anthropic's tools that the client runs. Requests contain only their types; descriptions and schemas are here.

Anthropic's documentation of the bash, text editor and memory tools defines their inputs.
"""

from __future__ import annotations

from typing import Any

_Schema = dict[str, Any]
_TEXT: _Schema = {"type": "string"}
_LINE: _Schema = {"type": "integer", "minimum": 0}
_RANGE: _Schema = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}


def _commands(*names: str, **inputs: _Schema) -> _Schema:
    """Return the schema of a tool with commands, each of which uses some of the inputs."""
    properties = {"command": {"type": "string", "enum": list(names)}, **inputs}
    return {"type": "object", "properties": properties, "required": ["command"]}


_EDITS: dict[str, _Schema] = {"path": _TEXT, "view_range": _RANGE}
_EDITS |= {"file_text": _TEXT, "old_str": _TEXT, "new_str": _TEXT}
_INSERTED: dict[str, _Schema] = {"insert_line": _LINE, "insert_text": _TEXT}
_BASH: _Schema = {"type": "object", "properties": {"command": _TEXT, "restart": {"type": "boolean"}}}
_EDITOR = _commands("view", "create", "str_replace", "insert", **_EDITS, **_INSERTED)
_MEMORY = _commands(
    *("view", "create", "str_replace", "insert", "delete", "rename"),
    **(_EDITS | _INSERTED | {"old_path": _TEXT, "new_path": _TEXT}),
)
# Description and schema by the beginning of the type, which continues with the date of a version.
_TOOLS = {
    "bash_": ("Runs a command in a shell that stays open between calls; `restart` begins a new one.", _BASH),
    "text_editor_": ("Views, creates and edits text files.", _EDITOR),
    "memory_": ("Keeps notes in files under /memories, and finds them again in later conversations.", _MEMORY),
}


CLIENT_TOOLS = tuple(_TOOLS)


def client_tool(kind: str) -> tuple[str, dict[str, Any]]:
    """Return the description of a tool and the JSON schema of its input; its type begins with one of `CLIENT_TOOLS`."""
    return next(tool for begin, tool in _TOOLS.items() if kind.startswith(begin))
