"""Values of formats that do not write of which type they are."""

import json
from typing import Any

import pytest
from numaserve.server.answers.tools.argument_types import types_of, value_in_json
from numaserve.server.answers.tools.formats import tool_formats
from numaserve.server.answers.tools.types import Tool

from tests.support.model_outputs import each_way_to_cut, parse

QWEN = tool_formats()["qwen3_coder"]
MIMO = tool_formats()["mimo"]
GLM = tool_formats()["glm45"]


def schema(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "$defs": {"n": {"type": "integer"}, "loop": {"$ref": "#/$defs/loop"}},
    }


@pytest.mark.parametrize(
    ("of_argument", "types"),
    [
        ({"type": "string"}, {"string"}),
        ({"type": ["string", "null"]}, {"string", "null"}),
        ({"enum": ["a", "b"]}, {"string"}),
        ({"enum": [1, None]}, {"number", "null"}),
        ({"const": True}, {"boolean"}),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, {"string", "null"}),
        ({"oneOf": [{"$ref": "#/$defs/n"}, {"type": "array"}]}, {"integer", "array"}),
        ({"$ref": "#/$defs/n"}, {"integer"}),
        ({"$ref": "#/$defs/loop"}, set()),
        ({"$ref": "#/$defs/none"}, None),
        ({"$ref": "elsewhere.json"}, None),
        ({}, None),
        (True, None),
        ({"anyOf": [{"type": "string"}, {}]}, None),
    ],
)
def test_types_are_those_of_the_schema(of_argument: Any, types: set[str] | None) -> None:
    assert types_of(schema(a=of_argument), "a") == types


def test_a_schema_that_is_none_allows_any_type() -> None:
    for each in (None, {}, {"properties": []}, {"properties": {"a": 1}}, {"properties": {"b": {"type": "string"}}}):
        assert types_of(each, "a") is None


def test_schemas_that_refer_to_themselves_in_many_ways_are_soon_read() -> None:
    loops = {"anyOf": [{"$ref": "#/properties/a"}, {"$ref": "#/properties/b"}, {"type": "string"}] * 100}
    assert types_of(schema(a=loops, b=loops), "a") == {"string"}
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(500):
        deep = {"anyOf": [deep]}
    assert types_of(schema(a=deep), "a") is None


@pytest.mark.parametrize(
    ("text", "types", "value"),
    [
        ("5", {"integer"}, 5),
        ("5.5", {"number"}, 5.5),
        ("5", {"string", "integer"}, 5),
        ("five", {"integer"}, "five"),
        ("True", {"boolean"}, True),
        ("None", {"string", "null"}, None),
        ('{"a": [1]}', {"object"}, {"a": [1]}),
        ("{'a': [True, None]}", {"object"}, {"a": [True, None]}),
        ("[1, 2", {"array"}, "[1, 2"),
        ("5", {"boolean"}, "5"),
        (" 5\n", None, 5),
        (" a b ", None, " a b "),
        ('"a"', None, '"a"'),
        ("NaN", None, "NaN"),
        ("", None, ""),
        ("9" * 5000, None, None),
    ],
)
def test_values_are_of_the_type_that_the_schema_says(text: str, types: set[str] | None, value: object) -> None:
    written = value_in_json(text, None if types is None else frozenset(types))
    assert written == text if len(text) == 5000 else json.loads(written) == value


def test_text_of_several_lines_is_kept_to_the_character() -> None:
    tools = [Tool("f", parameters=schema(code={"type": "string"}))]
    code = '\ndef f():\n\treturn "<b>"\n'
    text = f"<tool_call>\n<function=f>\n<parameter=code>\n{code}\n</parameter>\n</function>\n</tool_call>"
    for pieces in each_way_to_cut(text):
        assert parse(pieces, QWEN, tools=tools).named == [("f", {"code": code})]


@pytest.mark.parametrize(
    "text",
    [
        "<function=f>\n<parameter=n>\n5\n</parameter>\n</function>\n</tool_call>",
        "<tool_call><function=f><parameter=n>5</parameter></function></tool_call>",
        "<tool_call>\n<function=f>\n<parameter=n>\n5\n</parameter>\n</function>\n",
    ],
)
def test_tags_may_be_missing_or_on_one_line(text: str) -> None:
    for pieces in each_way_to_cut(text):
        answer = parse(pieces, QWEN)
        assert answer.named == [("f", {"n": 5})]
        assert answer.content == ""


def test_line_breaks_around_a_text_of_mimo_belong_to_it() -> None:
    call = "<tool_call>\n<function=f>\n<parameter=a>\n x\n\n</parameter>\n</function>\n</tool_call>"
    tools = [Tool("f", parameters=schema(a={"type": "string"}))]
    for pieces in each_way_to_cut(call):
        assert parse(pieces, MIMO, tools=tools).named == [("f", {"a": "\n x\n\n"})]
    assert parse([call], QWEN, tools=tools).named == [("f", {"a": " x\n"})]


def test_white_space_between_the_tags_of_glm_does_not_count() -> None:
    text = "<tool_call>f<arg_key>n</arg_key><arg_value>5</arg_value></tool_call><tool_call>g</tool_call>"
    for pieces in each_way_to_cut(text):
        assert parse(pieces, GLM).named == [("f", {"n": 5}), ("g", {})]


def test_text_among_the_arguments_ends_the_call_and_is_content() -> None:
    text = "<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>5</arg_value>\nand so on</tool_call>"
    answer = parse([text], GLM)
    assert answer.named == [("f", {"n": 5})]
    assert answer.content == "and so on</tool_call>"
