"""Models that call tools and think, played over an engine whose answer is given and comes byte by byte."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from numaserve.server.answers.reasoning.formats import reasoning_formats
from numaserve.server.answers.tools.formats import tool_formats
from shared_apps import app_over
from whole_answers import TestClient

from tests.support.api_fakes import CONTEXT, FakeEngine, make_context
from tests.support.byte_tokenizer import ByteTokenizer, fixed

USER = {"role": "user", "content": "x"}
WEATHER = {
    "name": "weather",
    "description": "Tells it.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CLOCK = {"name": "clock"}
ARGUMENTS = {"city": "São Paulo", "days": [1, 2]}
CALL = f"<tool_call>\n{json.dumps({'name': 'weather', 'arguments': ARGUMENTS}, ensure_ascii=False)}\n</tool_call>"
SECOND = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'


class Template(ByteTokenizer):
    """One whose template writes tools."""

    def __init__(self, chat_template: str = "tools tool_calls") -> None:
        super().__init__(chat_template=chat_template, render=fixed("p"))


@contextmanager
def thinking_client(engine: FakeEngine, template: Template, calls: str = "hermes") -> Iterator[TestClient]:
    """A client of a model that calls in the format `calls` and thinks between marks."""
    context = replace(
        make_context(engine),
        tokenizer=template,
        tool_format=tool_formats()[calls],
        reasoning_format=reasoning_formats()["think"],
    )
    limits = replace(context.limits, context_length=8 * CONTEXT)
    with TestClient(app_over(replace(context, limits=limits)), base_url="http://127.0.0.1") as client:
        yield client
