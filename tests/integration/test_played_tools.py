"""Answers of models of several families, played token by token by a worker, through the whole server to a client.

Each conversation has two rounds: a call, its result, and an answer. Constraints are compiled and follow what is played,
as tools may be called, but the worker does not look at masks. Transcripts show the answers of the other surfaces.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from harness import Options, events_of, serving
from numaserve.server.answers.formats import tool_format
from numaserve.server.answers.tools.formats import tool_formats
from numaserve.server.tokenizer import Tokenizer
from numaserve.server.tokenizer.chat_template import ChatTemplate
from played_script import Script

from tests.support.tokenizer_builders import byte_level_backend

QUESTION, RESULT = "Is it wet in Köln?", "rain, 9 °C"
CITY = {"city": {"type": "string"}, "days": {"type": "integer"}}
FUNCTION = {"name": "weather", "parameters": {"type": "object", "properties": CITY, "required": ["city"]}}
FIELDS = {"tools": [{"type": "function", "function": FUNCTION}], "temperature": 0}
ARGUMENTS = {"city": "Köln", "days": 2}
LOOK, THOUGHT, ANSWER = "I look. ", "The weather tool.", "Yes, it rains."
JSON = '{"city": "Köln", "days": 2}'
# What a model writes: its call, and its answer. The thought and the text before the call are there where a family has
# them.
PLAYS = {
    "hermes": (
        f'<think>\n{THOUGHT}\n</think>\n\n{LOOK}<tool_call>\n{{"name": "weather", "arguments": {JSON}}}\n</tool_call>',
        f"<think>\n{THOUGHT}\n</think>\n\n{ANSWER}",
    ),
    "llama3_json": (f'{{"name": "weather", "parameters": {JSON}}}', ANSWER),
    "deepseek_v3": (
        f"{LOOK}<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n"  # noqa: RUF001
        f"```json\n{JSON}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",  # noqa: RUF001
        ANSWER,
    ),
    "harmony": (
        f"<|channel|>analysis<|message|>{THOUGHT}<|end|><|start|>assistant"
        f"<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{JSON}<|call|>",
        f"<|channel|>analysis<|message|>{THOUGHT}<|end|><|start|>assistant<|channel|>final<|message|>{ANSWER}<|return|>",
    ),
    "qwen3_coder": (
        f"{LOOK}<tool_call>\n<function=weather>\n<parameter=city>\nKöln\n</parameter>\n"
        "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>",
        ANSWER,
    ),
    "mistral_v11": (f"[TOOL_CALLS]weather[ARGS]{JSON}", ANSWER),
}
ENDS = ("</s>", "<|call|>", "<|return|>")
ROLES = tuple(f"<{role}>" for role in ("system", "user", "assistant", "tool"))
# A family is known by what its template has in it; the rest is the same for all.
TEMPLATE = """{%- for tool in tools or [] %}<system>{{ tool | tojson }}{% endfor %}
{%- for message in messages %}<{{ message.role }}>{{ message.reasoning_content }}{{ message.content }}
{%- for call in message.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}{% endfor %}
{%- if add_generation_prompt %}<assistant>{% endif %}"""


def tokenizer_of(name: str) -> Tokenizer:
    """One with the special tokens of the format, and a template that it is known by."""
    backend = byte_level_backend()
    calls = tool_formats()[name]
    backend.add_special_tokens([*ROLES, *ENDS, *calls.tokens, "<think>", "</think>"])
    marks = [*calls.in_template, *(("</think>",) if name == "hermes" else ())]
    template = f"{{# {' '.join(marks)} #}}{TEMPLATE}"
    assert tool_format(None, template) is calls
    ends = frozenset(backend.token_to_id(end) for end in ENDS)
    return Tokenizer(
        backend, eos_token_ids=ends, bos_token_id=0, eos_token_id=1, chat_template=ChatTemplate.of(template)
    )


def script_of(tokenizer: Tokenizer, name: str) -> str:
    played = [text if text.endswith(ENDS) else f"{text}</s>" for text in PLAYS[name]]
    [turn] = tokenizer.encode("<assistant>", add_special_tokens=False)
    return Script.file(turn, [tokenizer.encode(text, add_special_tokens=False) for text in played])


def joined(text: str) -> dict[str, Any]:
    """The choice that the events of a stream make."""
    message: dict[str, Any] = {"role": "assistant", "content": "", "reasoning_content": ""}
    reason = None
    for event in events_of(text):
        [choice] = event["choices"]
        delta, reason = choice["delta"], choice["finish_reason"] or reason
        for field in ("content", "reasoning_content"):
            message[field] += delta.get(field) or ""
        for call in delta.get("tool_calls", ()):
            calls = message.setdefault("tool_calls", [])
            if call["index"] == len(calls):
                calls.append(call | {"function": call["function"] | {"arguments": ""}})
            calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    return {"message": message, "finish_reason": reason}


@pytest.mark.parametrize("name", PLAYS)
async def test_a_call_its_result_and_an_answer(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, file = tokenizer_of(name), tmp_path / "script.json"
    file.write_text(script_of(tokenizer, name))
    prompts: list[str] = []
    render = tokenizer.render_chat

    def note(*args: Any, **fields: Any) -> str:
        prompts.append(render(*args, **fields))
        return prompts[-1]

    monkeypatch.setattr(tokenizer, "render_chat", note)
    thought = THOUGHT if THOUGHT in PLAYS[name][0] else ""
    text = LOOK.strip() if LOOK in PLAYS[name][0] else ""
    async with serving(Options(tokenizer=tokenizer, faults=("--script", str(file)))) as server:

        async def ask(turns: list[dict[str, Any]], *, stream: bool) -> tuple[dict[str, Any], str]:
            body = {**FIELDS, "messages": turns, "stream": stream}
            answer = await server.client.post("/v1/chat/completions", json=body, timeout=60)
            assert answer.status_code == 200, answer.text
            choice = joined(answer.text) if stream else answer.json()["choices"][0]
            return choice["message"], choice["finish_reason"]

        for stream in (False, True):
            turns = [{"role": "user", "content": QUESTION}]
            called, end = await ask(turns, stream=stream)
            [call] = called["tool_calls"]
            assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("weather", ARGUMENTS)
            said = called.get("reasoning_content") or "", (called["content"] or "").strip()
            assert (*said, end) == (thought, text, "tool_calls")
            turns += [called, {"role": "tool", "tool_call_id": call["id"], "content": RESULT}]
            answered, end = await ask(turns, stream=stream)
            said = answered.get("reasoning_content") or "", answered["content"]
            assert (*said, end) == (thought, ANSWER, "stop")
            assert not answered.get("tool_calls")
            first, second = prompts[-2:]
            assert first.count(QUESTION) == second.count(QUESTION) == 1
            assert '"arguments": {"city": "Köln", "days": 2}' in second
            assert second.endswith(f"<tool>{RESULT}<assistant>")
