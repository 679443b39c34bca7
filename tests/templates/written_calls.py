"""What a chat template writes for a call, and whether the format that is chosen for it reads that."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from jinja2 import TemplateError
from numaserve.server.answers.reasoning.format import ReasoningFormat
from numaserve.server.answers.reasoning.formats import reasoning_format_of
from numaserve.server.answers.tools.format import ToolFormat
from numaserve.server.answers.tools.formats import tool_format_of
from numaserve.server.answers.tools.types import Tool
from numaserve.server.template.environment import make_environment

from tests.support.model_outputs import parse

ARGUMENTS = {"city": 'Köln "Süd" < 3', "days": 3, "exact": True, "parts": ["a", {"b": None}]}
TOOL = Tool(
    "get_weather",
    "The weather in a city.",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "Where."},
            "days": {"type": "integer", "description": "How many."},
            "exact": {"type": "boolean", "description": "In decimals."},
            "parts": {"type": "array", "description": "Of what.", "items": {"type": "string"}},
        },
        "required": ["city"],
    },
)
USER = {"role": "user", "content": "What is the weather?"}
WRITES_NO_CALL = "it writes no call"


@dataclass(frozen=True)
class Outcome:
    """The names of the formats that were chosen, and what is wrong with them, if anything."""

    calls: str | None
    thoughts: str | None
    problem: str = ""


def try_template(template: str) -> Outcome:
    """Have the template write a call, and read it."""
    calls, thoughts = tool_format_of(template), reasoning_format_of(template)
    names = (calls.name if calls else None, thoughts.name if thoughts else None)
    if calls is None:
        return Outcome(*names)
    problems = [_problem(text, prompt, calls, thoughts) for text, prompt in _written(template)]
    if not problems:
        return Outcome(*names, WRITES_NO_CALL)
    return Outcome(*names, "" if "" in problems else problems[0])


def _problem(text: str, prompt: str, calls: ToolFormat, thoughts: ReasoningFormat | None) -> str:
    if thoughts and thoughts.begins_inside_after(prompt) and thoughts.end not in text:
        text = thoughts.end + text
    answer = parse([text], calls, thoughts, [TOOL], prompt)
    try:
        named = answer.named
    except ValueError:
        return f"its arguments are no JSON: {answer.calls}"
    if named != [(TOOL.name, ARGUMENTS)]:
        return f"it was read as {answer}"
    return "" if TOOL.name not in answer.content + answer.reasoning else f"a part of it was left: {answer}"


def _written(template: str) -> Iterator[tuple[str, str]]:
    """The answer that calls, and the prompt before it, for each form of calls that the template takes."""
    for message in _messages():
        try:
            prompt = render(template, [USER], add_generation_prompt=True)
            whole = render(template, [USER, message], add_generation_prompt=False)
        except (TemplateError, TypeError, KeyError, AttributeError):
            continue
        begin = prompt
        if not whole.startswith(prompt):
            # What the prompt and the answer have in common may end in the middle of a mark.
            begin = "".join(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], zip(prompt, whole, strict=False)))
            begin = begin[: max(begin.rfind(end) for end in "\n>]") + 1]
        text = whole.removeprefix(begin)
        if TOOL.name in text:
            yield text, prompt


def _messages() -> Iterator[dict[str, Any]]:
    for arguments in (ARGUMENTS, json.dumps(ARGUMENTS, ensure_ascii=False)):
        function = {"name": TOOL.name, "arguments": arguments}
        for content in ("", None):
            call = {"id": "abcdef123", "type": "function", "function": function}
            yield {"role": "assistant", "content": content, "tool_calls": [call]}


def render(template: str, messages: list[dict[str, Any]], *, add_generation_prompt: bool) -> str:
    """Return the text of `messages`, with one tool."""
    function = {"name": TOOL.name, "description": TOOL.description, "parameters": TOOL.parameters}
    return (
        make_environment()
        .from_string(template)
        .render(
            messages=messages,
            tools=[{"type": "function", "function": function}],
            documents=None,
            bos_token="<s>",
            eos_token="</s>",
            add_generation_prompt=add_generation_prompt,
        )
    )
