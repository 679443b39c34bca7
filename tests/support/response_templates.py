"""Response templates of models that there are not, each with a writer of what such a model writes."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

CALL = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}

# Thoughts and calls between marks, the answer around them.
MARKED: dict[str, Any] = {
    "version": 1,
    "defaults": {"role": "assistant"},
    "start_anchor": "[turn]",
    "fields": {
        "thinking": {"open": "[think]", "close": "[/think]"},
        "tool_calls": {
            "open_pattern": r"\s*\[call\]",
            "close": "[/call]",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "id": "{content.id}", "function": "{content}"},
        },
        "content": {"close_pattern": r"\s*\[(?:end|stop)\]"},
    },
}
# A channel for each part, with the name of a tool in its head, and tags for its arguments.
HEADED: dict[str, Any] = {
    "start_anchor": ["<|bot|>", "<|result|>"],
    "fields": {
        "reasoning_content": {"open": "<|to|>self<|is|>", "close": ["<|over|>", "<|out|>"]},
        "tool_calls": {
            "open_pattern": r"<\|to\|>tool\.(?P<name>\w+).*?<\|is\|>",
            "close": "<|over|>",
            "repeats": True,
            "content": "xml-inline",
            "content_args": {
                "tag_pattern": r"<arg (?P<key>[^>\n]+)>(?P<value>.*?)</arg>",
                "value_parser": {"name": "json", "args": {"allow_non_json": True}},
                "merge_duplicates": True,
            },
            "transform": CALL,
        },
        "content": {
            "open": "<|to|>user<|is|>",
            "close": ["<|over|>", "<|out|>"],
            "content_args": {"strip": False},
            "repeats": True,
            "join": "\n",
        },
    },
}
# All calls in one list, whose objects have other names for their parts, and something before it that has to be there.
LISTED: dict[str, Any] = {
    "start_anchor_pattern": r"\nmodel(?: \w+)?:",
    "defaults": {"role": "assistant", "content": ""},
    "fields": {
        "content": {"open": "SAY", "close": "END"},
        "tool_calls": {
            "open": "ACT",
            "close": "END",
            "content": "json",
            "transform_each": True,
            "transform": {"type": "function", "function": {"name": "{tool_name}", "arguments": "{parameters}"}},
        },
        "facts": {
            "open": "KNOW",
            "close": "END",
            "content": "kv-lines",
            "content_args": {"kv_sep": "=", "value_parser": {"name": "int"}},
        },
        "sure": {"open": "SURE", "close_pattern": r"(?=END)|\n", "content": "bool", "optional": False},
    },
}
# Objects without quotes, with marks of their own around texts.
BARE: dict[str, Any] = {
    "start_anchor": "<m>",
    "fields": {
        "reasoning": {"open": "<t>", "close": "</t>"},
        "tool_calls": {
            "open_pattern": r"<c>(?P<name>\w+)",
            "close": "</c>",
            "repeats": True,
            "content": "json",
            "content_args": {"unquoted_keys": True, "string_delims": [["«", "»"], ["<q>", "</q>"]]},
            "transform": CALL,
        },
        "content": {},
    },
}
# With an expression that takes longer than anybody has to see that it does not match, and a text that shows it.
CATASTROPHIC: dict[str, Any] = {**MARKED, "fields": {**MARKED["fields"], "slow": {"open_pattern": r"<(?:a|aa)+>"}}}
CATASTROPHE = "<" + "a" * 200


@dataclass(frozen=True)
class Written:
    """A template, the marks and texts that its answers are made of, and a prompt. `write` is how its model writes a
    thought, a text and calls (name, arguments)."""

    name: str
    template: dict[str, Any]
    parts: tuple[str, ...]
    prompt: str
    write: Callable[[str, str, Sequence[tuple[str, dict[str, Any]]]], str]


def _marked(thought: str, text: str, calls: Sequence[tuple[str, dict[str, Any]]]) -> str:
    objects = (
        json.dumps({"id": f"c{number}", "name": name, "arguments": arguments}, ensure_ascii=False)
        for number, (name, arguments) in enumerate(calls)
    )
    return f"[think]{thought}[/think]\n{text}\n" + "\n".join(f"[call]\n{each}\n[/call]" for each in objects)


def _headed(thought: str, text: str, calls: Sequence[tuple[str, dict[str, Any]]]) -> str:
    def tags(arguments: dict[str, Any]) -> str:
        return "".join(
            f"<arg {key}>{json.dumps(value, ensure_ascii=False)}</arg>\n" for key, value in arguments.items()
        )

    return f"<|to|>self<|is|>{thought}<|over|><|to|>user<|is|>{text}<|over|>" + "".join(
        f"<|to|>tool.{name} at once<|is|>{tags(arguments)}<|over|>" for name, arguments in calls
    )


def _listed(_thought: str, text: str, calls: Sequence[tuple[str, dict[str, Any]]]) -> str:
    objects = [{"tool_name": name, "parameters": arguments} for name, arguments in calls]
    return f"SURE true\nSAY{text}ENDKNOW\na=1\nb = 2\nENDACT{json.dumps(objects)}END"


def _bare(thought: str, text: str, calls: Sequence[tuple[str, dict[str, Any]]]) -> str:
    def value(of: object) -> str:
        if isinstance(of, str):
            return f"«{of}»"
        if isinstance(of, dict):
            return "{" + ",".join(f"{key}:{value(each)}" for key, each in of.items()) + "}"
        return "[" + ",".join(map(value, of)) + "]" if isinstance(of, list) else json.dumps(of)

    return f"<t>{thought}</t>" + "".join(f"<c>{name}{value(each)}</c>" for name, each in calls) + text


WRITTEN = (
    Written(
        "marked",
        MARKED,
        ("[think]", "[/think]", "[call]", '{"id": "1", "name": "f", "arguments": {}}', "[/call]", "\n", "[end]", "[st"),
        "[turn]before[end][turn]",
        _marked,
    ),
    Written(
        "headed",
        HEADED,
        *(
            ("<|to|>self", "<|is|>", "<|over|>", "<|out|>", "<|to|>tool.f", "<|to|>user", "<arg a>", "1", "</arg>"),
            "<|bot|>",
        ),
        _headed,
    ),
    Written(
        "listed",
        LISTED,
        ("SAY", "END", "ACT", '[{"tool_name": "f", "parameters": {"a": 1}}]', "KNOW", "a=1", "\n", "SURE", "true"),
        "user:\nmodel one:",
        _listed,
    ),
    Written(
        "bare",
        BARE,
        ("<t>", "</t>", "<c>f", '{a:«x"»,b:<q>«»</q>}', "</c>", "{", "\x01", "<m>"),
        "<m>",
        _bare,
    ),
)
