"""Tool calls and reasoning on every surface, in every format, and how a request asks for them or forbids them."""

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
_NAMED = {"type": "function", "function": {"name": "weather"}}


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
IN_ONE_FORMAT = (
    _chat("none", tool_choice="none"),
    _chat("named", tool_choice=_NAMED),
    _chat("allowed", tool_choice={"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [_NAMED]}}),
    _chat("one at a time", parallel_tool_calls=False),
    _chat("strict", tools=[{"type": "function", "function": {**_FUNCTION, "strict": True}}]),
    _chat("foreign tools", tools=[*_TOOLS, {"type": "web_search"}]),
    _chat("with log-probabilities", logprobs=True, top_logprobs=1),
    _chat("token ids", return_token_ids=True),
    _chat("reasoning in the text", separate_reasoning=False),
    _chat("reasoning left out", include_reasoning=False),
    _chat("effort", reasoning_effort="none"),
    *both_ways("short reasoning", "/v1/chat/completions", {**_CHAT, "max_thinking_tokens": 2}),
    _chat("cut off in a call", max_tokens=16),
    _chat("cut off in a thought", max_tokens=3),
    _chat("two choices", n=2, seed=3, temperature=0.5),
    _chat("and a schema", response_format={"type": "json_object"}, tools=None),
    *both_ways(
        "older form",
        "/v1/chat/completions",
        {**_TEXT, "functions": [_FUNCTION], "function_call": {"name": "weather"}},
    ),
    Case("messages, any", "/v1/messages", {**_MESSAGES, "tool_choice": {"type": "any"}}),
    Case("messages, a tool", "/v1/messages", {**_MESSAGES, "tool_choice": {"type": "tool", "name": "weather"}}),
    Case("messages, no thinking", "/v1/messages", {**_MESSAGES, "thinking": {"type": "disabled"}}),
    Case(
        "messages, thinking omitted",
        "/v1/messages",
        {**_MESSAGES, "thinking": {"type": "adaptive", "display": "omitted"}},
    ),
    Case(
        "messages, after a result",
        "/v1/messages",
        {
            **_MESSAGES,
            "messages": [
                _ASKED,
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "Hm.", "signature": "x"},
                        {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Köln"}},
                    ],
                },
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "rain"}]},
            ],
        },
    ),
    Case("responses, required", "/v1/responses", {**_RESPONSES, "tool_choice": "required"}),
    Case(
        "responses, kept", "/v1/responses", _RESPONSES, take={"r": r'"id":"(resp_[^"]+)"', "c": r'"call_id":"([^"]+)"'}
    ),
    Case(
        "responses, after a result",
        "/v1/responses",
        {
            **_RESPONSES,
            "previous_response_id": "{{r}}",
            "input": [{"type": "function_call_output", "call_id": "{{c}}", "output": "rain"}],
        },
    ),
    Case("responses, items", "/v1/responses/{{r}}/input_items"),
    Case("Ollama, no thinking", "/api/chat", {**_OLLAMA, "think": False, "stream": False}),
    Case("Ollama, generate", "/api/generate", {"model": "golden", "prompt": "Wet?", "think": True, "stream": False}),
    Case("Ollama, show", "/api/show", {"model": "golden"}),
    Case("count", "/v1/messages/count_tokens", {key: _MESSAGES[key] for key in ("model", "messages", "tools")}),
    Case("tokenize", "/tokenize", {"messages": [_ASKED, *_RESULT], "tools": _TOOLS}),
    Case("metrics", "/metrics"),
)


def _served(name: str, script: Script) -> Served:
    more = IN_ONE_FORMAT if name in ("hermes", "harmony") else ()
    loose = (r"(?<=\"id\":\")[0-9A-Za-z]{9}(?=\")", r"(?<=\"call_id\":\")[0-9A-Za-z]{9}(?=\")")
    return Served(f"format {name}", f"scripted-{name}", (*IN_EVERY_FORMAT, *more), script.options, loose=loose)


SERVERS = (
    *(_served(name, script) for name, script in SCRIPTS.items()),
    # A template that knows no tools, with the default format.
    Served("format of no template", "family-llama-untied", IN_EVERY_FORMAT[:2]),
)
