"""Whether a chat template writes the thought of an earlier answer again: in a loop of calls, and after its end."""

from typing import Any

from jinja2 import TemplateError

from tests.templates.written_calls import TOOL, USER, render

IN_LOOPS, ALWAYS, NEVER = "in loops", "always", "never"
THOUGHT = "It may rain there."
_RESULT = {"role": "tool", "tool_call_id": "abcdef123", "name": TOOL.name, "content": "Rain."}
_NEXT = [{"role": "assistant", "content": "It rains."}, USER]


def kept_thoughts(template: str) -> str:
    """Return when the thought is written: never, in loops of calls alone, or always."""
    loop = [USER, _call(), _RESULT]
    try:
        kept = [THOUGHT in render(template, messages, add_generation_prompt=True) for messages in (loop, loop + _NEXT)]
    except (TemplateError, TypeError, KeyError, AttributeError):
        return NEVER
    return {(False, False): NEVER, (True, False): IN_LOOPS, (True, True): ALWAYS}[kept[0], kept[1]]


def _call() -> dict[str, Any]:
    call = {"id": "abcdef123", "type": "function", "function": {"name": TOOL.name, "arguments": {"city": "Köln"}}}
    thought = {"reasoning_content": THOUGHT, "thinking": THOUGHT}  # as the server names it for templates
    return {"role": "assistant", "content": "", "tool_calls": [call], **thought}
