"""Models with a response template, from their folder to an answer, and what the operator hears of it."""

import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from served import Serve, announced_url

from tests.support import tiny_model

# The model writes words such as w123: the first is a thought, the next ones are text.
WORDS = {"start_anchor": "w11 ", "fields": {"thinking": {"open_pattern": r"\Aw", "close": "w"}, "content": {}}}
CALLING = {**WORDS, "fields": {**WORDS["fields"], "tool_calls": {"open": "<call>", "content": "json", "repeats": True}}}
INVALID = "the field content has an invalid regular expression"
BROKEN = {"start_anchor": "<", "fields": {"content": {"open_pattern": "("}}}
CHAT = {"messages": [{"role": "user", "content": "w11"}], "max_tokens": 5, "ignore_eos": True}
TOOLS = [{"type": "function", "function": {"name": "f"}}]


def asked(url: str, **fields: Any) -> httpx.Response:
    return httpx.post(url + "/v1/chat/completions", json={**CHAT, **fields}, timeout=30)


def test_an_answer_is_read_by_the_models_own_template(serve: Serve, model: Path) -> None:
    tiny_model.give_response_template(model, CALLING)
    url = announced_url(serve("tp=1"))
    answer = asked(url, tools=TOOLS)
    assert answer.status_code == 200, answer.text
    message = answer.json()["choices"][0]["message"]
    assert re.fullmatch(r"\d+", message["reasoning_content"])
    assert re.fullmatch(r"\d+( *w\d+){3}", message["content"])


@pytest.mark.parametrize(
    ("options", "template", "reads"),
    [
        ((), WORDS, True),
        (("tool_call_parser=hermes",), WORDS, False),
        (("tool_call_parser=none",), WORDS, False),
        ((), BROKEN, False),
    ],
    ids=["by default", "another format", "no format", "a broken one"],
)
def test_it_is_used_where_nothing_else_is_named(
    serve: Serve, model: Path, log: Path, options: tuple[str, ...], template: object, reads: bool
) -> None:
    tiny_model.give_response_template(model, template)
    url = announced_url(serve("tp=1", *options))
    assert ("reasoning_content" in asked(url).json()["choices"][0]["message"]) == reads
    assert asked(url, tools=TOOLS).status_code == (200 if "tool_call_parser=hermes" in options else 400)
    assert (f"ignoring the model's response template: {INVALID}" in log.read_text()) == (template is BROKEN)


@pytest.mark.parametrize(
    ("template", "words"),
    [(None, "has no response template"), (BROKEN, INVALID)],
)
def test_one_that_is_named_has_to_be_there(serve: Serve, model: Path, log: Path, template: object, words: str) -> None:
    tiny_model.give_response_template(model, template)
    assert serve("tool_call_parser=response_template").wait(60) == 2
    assert re.fullmatch(rf"--tool-call-parser response_template: .*{words}.*\n", log.read_text())
