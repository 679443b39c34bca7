"""What models of several families write, played token by token by a worker, through the whole server to its clients.

Each conversation has two rounds: a call, its result, and an answer. Constraints are compiled and follow what is played,
as tools may be called, but the worker does not look at masks.
"""

from pathlib import Path
from typing import Any

import pytest
from harness import Options, serving
from numaserve.server.answers.formats import tool_format
from numaserve.server.answers.tools.formats import tool_formats
from numaserve.server.tokenizer import Tokenizer
from numaserve.server.tokenizer.chat_template import ChatTemplate
from played_script import Script
from surfaces import QUESTION, RESULT, SURFACES

from tests.support.tokenizer_builders import byte_level_backend

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
        for surface in SURFACES:
            for stream in (False, True):
                conversation = surface()
                said = await conversation.ask(server.client, stream=stream)
                assert (said.thought, said.text.strip(), said.calls) == (thought, text, [("weather", ARGUMENTS)])
                conversation.give_result(said)
                answer = await conversation.ask(server.client, stream=stream)
                assert (answer.thought, answer.text, answer.calls) == (thought, ANSWER, [])
                assert (said.end, answer.end) == surface.ends
                asked, answered = prompts[-2:]
                assert asked.count(QUESTION) == answered.count(QUESTION) == 1
                assert '"arguments": {"city": "Köln", "days": 2}' in answered
                assert answered.endswith(f"<tool>{RESULT}<assistant>")
