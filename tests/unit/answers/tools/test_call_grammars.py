"""What a grammar lets through is read as calls of the tools given, and what a format writes is let through."""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

import jsonschema_rs
import pytest
from llguidance import LLMatcher, LLTokenizer
from numaserve.server.answers.tools.format import Call, ToolFormat
from numaserve.server.answers.tools.formats import tool_formats
from numaserve.server.answers.tools.types import Tool
from numaserve.server.structured.matchers.matcher import GrammarMatcher
from numaserve.server.structured.parser_limits import new_matcher
from numaserve.server.structured.structural_tag import structural_tag_grammar
from numaserve.server.structured.types import Limits
from numaserve.server.structured.vocabulary import Vocabulary
from numaserve.server.tokenizer import Tokenizer, load_tokenizer

from tests.support.masks import matches, walk
from tests.support.model_outputs import parse
from tests.support.tokenizer_builders import byte_level_backend, demo_gguf, wrap

COLORS = {"enum": ["red", "dark blue", "g<b"]}
WEATHER = Tool(
    "get_weather",
    parameters={
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "unit": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "exact": {"type": "boolean"},
        },
        "required": ["city", "days"],
    },
)
PAINT = Tool(
    "paint",
    parameters={
        "type": "object",
        "properties": {
            "color": COLORS,
            "layers": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
            "size": {"type": "object", "properties": {"w": {"enum": [1, 20]}}, "required": ["w"]},
            "matt": {"type": "boolean"},
        },
        "additionalProperties": False,
    },
)
NOTHING = Tool("now", parameters={"type": "object", "properties": {}, "additionalProperties": False})
TOOLS = [WEATHER, PAINT, NOTHING]


@dataclass
class Model:
    """A tokenizer, and matchers of grammars over it: each grammar is compiled once, as the server does it."""

    tokenizer: Tokenizer
    vocabulary: Vocabulary
    loaded: LLTokenizer
    compiled: dict[str, LLMatcher] = field(default_factory=dict)

    def matcher(self, tag: str | None) -> GrammarMatcher:
        assert tag is not None
        if tag not in self.compiled:
            matcher = new_matcher(self.loaded, structural_tag_grammar(tag, self.vocabulary.special, Limits()))
            assert not matcher.is_error(), matcher.get_error()
            self.compiled[tag] = matcher
        return GrammarMatcher(self.compiled[tag].deep_copy(), self.loaded.vocab_size, self.tokenizer.eos_token_ids)

    def lets_through(self, tag: str | None, text: str) -> bool:
        return matches(self.matcher(tag), self.tokenizer, text)


@cache
def model(tool_format: ToolFormat, special: bool) -> Model:
    """With `special`, the format's markers are special tokens."""
    backend = byte_level_backend()
    if special:
        backend.add_special_tokens(list(tool_format.tokens))
    tokenizer = wrap(backend)
    vocabulary = Vocabulary.of(tokenizer, tokenizer.vocab_size)
    return Model(tokenizer, vocabulary, vocabulary.load())


@pytest.fixture(scope="module")
def demo() -> Iterator[Model]:
    tokenizer = load_tokenizer(demo_gguf())
    vocabulary = Vocabulary.of(tokenizer, tokenizer.vocab_size)
    yield Model(tokenizer, vocabulary, vocabulary.load())
    tokenizer.close()


each_format = pytest.mark.parametrize("name", list(tool_formats()))
each_kind_of_marker = pytest.mark.parametrize("special", [False, True], ids=["text", "tokens"])
CALLS = [
    Call(name="get_weather", arguments={"city": "Köln, a < b\n", "days": 3, "unit": "C", "exact": True}),
    Call(name="get_weather", arguments={"city": "", "days": -10}),
    Call(name="paint", arguments={"color": "dark blue", "layers": [True, False], "size": {"w": 20}, "matt": False}),
    Call(name="paint", arguments={"layers": []}),
    Call(name="paint", arguments={}),
    Call(name="now", arguments={}),
]


def as_the_model_writes(tool_format: ToolFormat, calls: list[Call]) -> str:
    text = tool_format.render(calls)
    if tool_format.name == "harmony":  # the form that the model prefers, and its end is left to the grammar's
        call = calls[0]
        head = f"<|channel|>commentary to=functions.{call.name} <|constrain|>json<|message|>"
        return head + json.dumps(call.arguments, ensure_ascii=False)
    if tool_format.name in {"pythonic", "lfm2"}:
        return text.replace("True", "true").replace("False", "false").replace("'", '"')
    return text


@each_format
@each_kind_of_marker
def test_calls_that_a_format_writes_are_let_through(name: str, special: bool) -> None:
    tool_format = tool_formats()[name]
    over = model(tool_format, special)
    required = tool_format.grammar(TOOLS, required=True, parallel=True)
    for call in CALLS:
        assert over.lets_through(required, as_the_model_writes(tool_format, [call]))
    if name != "harmony":
        assert over.lets_through(required, as_the_model_writes(tool_format, CALLS))
        one = tool_format.grammar(TOOLS, required=True, parallel=False)
        assert not over.lets_through(one, as_the_model_writes(tool_format, CALLS))


@each_format
@each_kind_of_marker
def test_a_required_call_is_one_of_the_tools_with_their_arguments(name: str, special: bool) -> None:
    tool_format = tool_formats()[name]
    over = model(tool_format, special)
    required = tool_format.grammar(TOOLS, required=True, parallel=True)
    wrong = [
        Call(name="elsewhere", arguments={}),
        Call(name="get_weather", arguments={"city": "Köln"}),
        Call(name="get_weather", arguments={"city": "Köln", "days": "three"}),
        Call(name="paint", arguments={"color": "green"}),
        Call(name="paint", arguments={"size": {"w": 2}}),
        Call(name="now", arguments={"a": 1}),
    ]
    for call in wrong:
        assert not over.lets_through(required, as_the_model_writes(tool_format, [call]))
    assert not over.lets_through(required, "No.")
    assert not over.lets_through(required, "")


def assert_walks_are_calls(tool_format: ToolFormat, over: Model, walks: int) -> None:
    """At least one of the walks through the masks ends, and each that ends is read as calls of the tools."""
    tools = [PAINT, NOTHING]
    schemas = {tool.name: tool.parameters for tool in tools}
    tag = tool_format.grammar(tools, required=True, parallel=True)
    texts = [walk(over.matcher(tag), over.tokenizer, random.Random(seed), most=400) for seed in range(walks)]
    ended = [text for text in texts if text is not None]
    assert ended
    for text in ended:
        answer = parse([text], tool_format, tools=tools)
        assert answer.content == ""
        assert answer.calls
        assert all(jsonschema_rs.is_valid(schemas[str(called)], arguments) for called, arguments in answer.named)


@each_format
@each_kind_of_marker
def test_walks_through_the_masks_are_read_as_calls_of_the_tools(name: str, special: bool) -> None:
    assert_walks_are_calls(tool_formats()[name], model(tool_formats()[name], special), 4)


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "gemma4"])
def test_walks_over_the_demo_models_tokens_are_read_as_calls(name: str, demo: Model) -> None:
    assert_walks_are_calls(tool_formats()[name], demo, 2)


@each_format
@each_kind_of_marker
def test_an_answer_that_may_call_is_free_up_to_the_trigger(name: str, special: bool) -> None:
    tool_format = tool_formats()[name]
    over = model(tool_format, special)
    auto = tool_format.grammar(TOOLS, required=False, parallel=True)
    if tool_format.bare and name != "harmony":
        assert auto is None
        return
    before = "<|channel|>final<|message|>" if name == "harmony" else ""
    assert over.lets_through(auto, f"{before}Hello, wörld < 3!\n")
    call = Call(name="paint", arguments={"color": "red"})
    wrong = Call(name="paint", arguments={"color": "green"})
    said = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant" if name == "harmony" else "I paint.\n"
    assert over.lets_through(auto, said + as_the_model_writes(tool_format, [call]))
    assert not over.lets_through(auto, said + as_the_model_writes(tool_format, [wrong]))


@each_format
def test_arguments_of_which_nothing_is_said_may_be_any(name: str) -> None:
    tool_format = tool_formats()[name]
    over = model(tool_format, False)
    required = tool_format.grammar([Tool("f")], required=True, parallel=False)
    for arguments in ({}, {"a": "x"}, {"a": "x", "b_c": "y\nz"}):
        assert over.lets_through(required, as_the_model_writes(tool_format, [Call(name="f", arguments=arguments)]))


@each_format
def test_arguments_may_refer_to_what_the_schema_defines(name: str) -> None:
    tool_format = tool_formats()[name]
    level = {"$ref": "#/$defs/level"}
    parameters = {"type": "object", "properties": {"n": level}, "required": ["n"], "$defs": {"level": {"enum": [1, 2]}}}
    required = tool_format.grammar([Tool("f", parameters=parameters)], required=True, parallel=False)
    over = model(tool_format, False)
    for number, right in ((1, True), (3, False)):
        call = as_the_model_writes(tool_format, [Call(name="f", arguments={"n": number})])
        assert over.lets_through(required, call) == right


@each_format
def test_the_same_tools_make_the_same_text(name: str) -> None:
    tool_format = tool_formats()[name]
    assert tool_format.grammar(TOOLS, True, True) == tool_format.grammar(list(TOOLS), True, True)


def test_an_answer_of_gpt_oss_is_the_text_of_its_last_message() -> None:
    harmony = tool_formats()["harmony"]
    form = harmony.answer_form({"type": "json_schema", "json_schema": {"type": "integer"}})
    tag = json.dumps({"type": "structural_tag", "format": form})
    over = model(harmony, True)
    thought = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    assert over.lets_through(tag, "<|channel|>final<|message|>12")
    assert over.lets_through(tag, f"{thought}{thought}<|channel|>final<|message|>12")
    assert not over.lets_through(tag, "<|channel|>final<|message|>twelve")
    assert not over.lets_through(tag, "12")


def test_objects_of_gemma_that_a_schema_refers_to_are_read_as_they_are_let_through() -> None:
    gemma = tool_formats()["gemma4"]
    point = {
        "type": "object",
        "properties": {"x": {"type": "string"}},
        "required": ["x"],
        "additionalProperties": False,
    }
    parameters = {"type": "object", "properties": {"p": {"$ref": "#/$defs/point"}}, "required": ["p"]}
    tools = [Tool("f", parameters={**parameters, "$defs": {"point": point}})]
    text = '<|tool_call>call:f{p:{"x": "a, \\"b\\" é"}}<tool_call|>'
    assert model(gemma, True).lets_through(gemma.grammar(tools, required=True, parallel=True), text)
    assert parse([text], gemma, tools=tools).named == [("f", {"p": {"x": 'a, "b" é'}})]
