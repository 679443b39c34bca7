"""Outputs as they come from a model: token by token, each of them bytes that may end inside of a character."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numaserve.server.answers.reasoning.formats import reasoning_formats
from numaserve.server.answers.tools.format import Call, ToolFormat
from numaserve.server.answers.tools.formats import tool_formats
from numaserve.server.tokenizer import Tokenizer
from numaserve.server.tokenizer.detokenizer import IncrementalDetokenizer
from numaserve.server.tokenizer.token_bytes import byte_alphabet

from tests.support.model_outputs import parse
from tests.support.tokenizer_builders import byte_level_backend, wrap

THINK = reasoning_formats()["think"]
ARGUMENTS = {"city": "Köln 中文 👩‍👩‍👧‍👦", "days": [1, None], "more": {"é": "ß"}}
BACKEND = byte_level_backend()
BYTES = wrap(BACKEND)
CALLS = [Call(name="f", arguments=ARGUMENTS), Call(name="g", arguments={})]


def tokenizer_of(tool_format: ToolFormat) -> Tokenizer:
    backend = byte_level_backend()
    backend.add_special_tokens([*tool_format.tokens, *THINK.tokens])
    return wrap(backend)


def pieces(tokenizer: Tokenizer, tool_format: ToolFormat, text: str) -> list[str]:
    """What comes of each token, markers spelled out though special tokens are skipped."""
    tokens = {*tool_format.tokens, *THINK.tokens}
    shown = frozenset(id for id in tokenizer.special_token_ids if tokenizer.token_text(id) in tokens)
    detokenizer = IncrementalDetokenizer(tokenizer, True, shown)
    return [*map(detokenizer.push, tokenizer.encode(text, add_special_tokens=False)), detokenizer.flush()]


@pytest.mark.parametrize("name", [name for name, each in tool_formats().items() if not each.whole])
def test_an_answer_is_the_same_token_by_token(name: str) -> None:
    tool_format = tool_formats()[name]
    said = "" if tool_format.bare else "Grüße 😀\n"
    text = f"<think>Hmm… 🤔\n</think>\n\n{said}{tool_format.render(CALLS)}"
    whole = parse([text], tool_format, THINK)
    assert parse(pieces(tokenizer_of(tool_format), tool_format, text), tool_format, THINK) == whole
    assert (whole.reasoning, whole.content) == ("Hmm… 🤔", said.strip())
    assert whole.named == [(call.name, call.arguments) for call in CALLS]


@settings(max_examples=50)
@given(data=st.binary(max_size=20))
def test_an_answer_is_the_same_byte_by_byte(data: bytes) -> None:
    tokens = {byte: BACKEND.token_to_id(spelling) for spelling, byte in byte_alphabet().items()}
    detokenizer = IncrementalDetokenizer(BYTES, False)
    output = '<tool_call>{"name": "f", "arguments": {"ä": "'.encode() + data
    hermes = tool_formats()["hermes"]
    text = [detokenizer.push(tokens[byte]) for byte in output]
    assert parse([*text, detokenizer.flush()], hermes) == parse([output.decode(errors="replace")], hermes)
