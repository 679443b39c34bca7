"""Tool calls and reasoning on every surface, in every format."""

from typing import Any

from tests.golden.cases import GREEDY, Case, Served, both_ways
from tests.golden.scripts import SCRIPTS, Script

_PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
}
_FUNCTION = {"name": "weather", "description": "Tells the weather.", "parameters": _PARAMETERS}
_TOOLS = [{"type": "function", "function": _FUNCTION}]
_ASKED = {"role": "user", "content": "Is it wet in Köln?"}
_CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Köln"}'}}
_RESULT = [{"role": "assistant", "tool_calls": [_CALL]}, {"role": "tool", "tool_call_id": "call_1", "content": "rain"}]
_CHAT = {"messages": [_ASKED], "tools": _TOOLS, "max_tokens": 60, **GREEDY}
_TEXT = {key: value for key, value in _CHAT.items() if key != "tools"}
_MESSAGES = {
    "model": "golden",
    "messages": [_ASKED],
    "tools": [{"name": "weather", "description": "Tells the weather.", "input_schema": _PARAMETERS}],
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "max_tokens": 60,
    **GREEDY,
}
_RESPONSES = {"input": [_ASKED], "tools": [{"type": "function", **_FUNCTION}], "max_output_tokens": 60, **GREEDY}
_OLLAMA = {"model": "golden", "messages": [_ASKED], "options": {"temperature": 0, "num_predict": 60}}


def _chat(name: str, **changes: Any) -> Case:
    return Case(name, "/v1/chat/completions", {**_CHAT, **changes})


IN_EVERY_FORMAT = (
    *both_ways("chat", "/v1/chat/completions", _CHAT),
    *both_ways("messages", "/v1/messages", _MESSAGES),
    *both_ways("responses", "/v1/responses", _RESPONSES),
    *both_ways("Ollama", "/api/chat", {**_OLLAMA, "tools": _TOOLS, "think": True}),
    *both_ways("required", "/v1/chat/completions", {**_CHAT, "tool_choice": "required"}),
    *both_ways("no tools", "/v1/chat/completions", _TEXT),
    _chat("after a result", messages=[_ASKED, *_RESULT]),
    _chat("no reasoning", chat_template_kwargs={"enable_thinking": False}),
)


def _served(name: str, script: Script) -> Served:
    loose = (r"(?<=\"id\":\")[0-9A-Za-z]{9}(?=\")", r"(?<=\"call_id\":\")[0-9A-Za-z]{9}(?=\")")
    return Served(f"format {name}", f"scripted-{name}", IN_EVERY_FORMAT, script.options, loose=loose)


SERVERS = (
    *(_served(name, script) for name, script in SCRIPTS.items()),
    # A template that knows no tools, with the default format.
    Served("format of no template", "family-llama-untied", IN_EVERY_FORMAT[:2]),
)
