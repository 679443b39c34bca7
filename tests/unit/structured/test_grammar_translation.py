"""What each kind of constraint lets through, and what is said of those that cannot be served."""

import json

import pytest
from numaserve.server.structured.types import ConstraintKind, UnsupportedGrammar

from tests.unit.structured.conftest import Match


@pytest.mark.parametrize(
    ("kind", "content", "right", "wrong"),
    [
        ("json_object", "", '{"a": [1, null]}', "[1]"),
        ("json_object", "", '{\n  "a": 1\n}', '{"a": 1'),
        ("json_schema", {"type": "integer"}, "12", '"12"'),
        ("json_schema", True, "[1]", "[1"),
        ("json_schema", {"properties": {"ü\n": {"const": "\x07"}}, "required": ["ü\n"]}, '{"ü\\n":"\\u0007"}', "{}"),
        ("regex", "[0-9]{3}", "123", "1234"),
        ("regex", "^a/b$", "a/b", "xa/b"),
        ("choice", ["yes", "no", 'q"\\\n', "😀"], 'q"\\\n', "y"),
        ("choice", ["yes", "😀"], "😀", ""),
        ("choice", ["a", "a", ""], "", "b"),
        ("choice", ["a", "a", ""], "a", "aa"),
        ("choice", ["", ""], "", "a"),
        ("choice", [str(each) for each in range(20_000)], "19999", "20000"),
        ("json_schema", {"type": "string", "maxLength": 100_000}, '"abc"', "abc"),
        ("lark", 'start: "a" b+\nb: /[0-9]/', "a12", "a"),
        ("lark", 'root ::= "a" b+\nb ::= [0-9]', "a12", "a"),
    ],
)
def test_a_constraint_lets_through_what_matches_it(
    match: Match, kind: ConstraintKind, content: object, right: str, wrong: str
) -> None:
    assert match(kind, content, right)
    assert not match(kind, content, wrong)


def test_white_space_in_json_is_bounded_unless_the_schema_says_otherwise(match: Match) -> None:
    assert match("json_object", "", '{"a":' + 21 * " " + "1}")
    assert not match("json_object", "", '{"a":' + 22 * " " + "1}")
    longer = {"type": "object", "x-guidance": {"whitespace_pattern": "[ ]{1,30}"}}
    assert match("json_schema", longer, '{"a":' + 30 * " " + "1}")


@pytest.mark.parametrize("in_tag", [False, True])
def test_other_options_of_a_schema_leave_white_space_bounded(match: Match, in_tag: bool) -> None:
    schema = {"type": "object", "x-guidance": {"lenient": True}}
    form = {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": schema}}
    kind: ConstraintKind = "structural_tag" if in_tag else "json_schema"
    for spaces, is_right in ((21, True), (22, False)):
        assert match(kind, form if in_tag else schema, '{"a":' + spaces * " " + "1}") is is_right


@pytest.mark.parametrize(
    ("kind", "longest"),
    [("time", "10:00:00.123456789+01:00"), ("date-time", "2026-01-31T10:00:00.123456789+01:00"), ("duration", "P1Y2M")],
)
def test_a_format_without_a_longest_text_is_bounded(match: Match, kind: str, longest: str) -> None:
    schema = {"type": "string", "format": kind}
    assert match("json_schema", schema, f'"{longest}"')
    if kind != "duration":
        assert not match("json_schema", schema, f'"{longest.replace(".", ".0")}"')
        longer = {"type": "string", "format": kind, "maxLength": 40}
        assert match("json_schema", longer, f'"{longest.replace(".", ".0")}"')


def test_a_long_text_is_allowed_where_it_is_bounded(match: Match) -> None:
    assert match("json_schema", {"type": "string", "maxLength": 9000}, '"' + "a few words, " * 300 + '"')


def test_what_looks_like_a_format_in_a_value_stays(match: Match) -> None:
    value = {"format": "time"}
    for schema in ({"const": value}, {"enum": [value]}):
        assert match("json_schema", schema, '{"format":"time"}')


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"not": {}}, "not"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"properties": {"a": {"if": {}, "then": {}}}}, "if"),
        ({"dependentRequired": {"a": ["b"]}}, "dependentRequired"),
        ({"propertyNames": {"pattern": "a"}}, "propertyNames"),
        ({"unevaluatedProperties": False}, "unevaluatedProperties"),
        ({"contains": {}}, "contains"),
        ({"type": "string", "format": "regex"}, "format"),
        ({"type": "string", "pattern": "(?=a)b"}, "pattern"),
        ({"type": "string", "pattern": "("}, "pattern"),
        ({"$ref": "http://127.0.0.1:1/a.json"}, "$ref"),
        ({"$ref": "file:///etc/passwd"}, "$ref"),
        ({"$ref": "#/nowhere"}, "$ref"),
        ({"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}, {"type": "object"}]}}, "$ref": "#/$defs/a"}, "$ref"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
        ({"type": "object", "properties": {"a": {}}, "minProperties": 3}, "minProperties"),
        ({"type": "object", "patternProperties": {"^a": {}, "^ab": {}}}, "patternProperties"),
        ({"type": "text"}, "type"),
        ({"type": "integer", "multipleOf": 0}, "multipleOf"),
    ],
)
def test_an_unsupported_schema_is_refused_with_its_keyword(match: Match, schema: object, keyword: str) -> None:
    with pytest.raises(UnsupportedGrammar) as refused:
        match("json_schema", schema, "{}")
    assert refused.value.keyword == keyword
    assert keyword in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        ("json_schema", "{", "not JSON"),
        ("json_schema", "[1]", "a JSON schema must be an object"),
        ("json_schema", "false", "Unsatisfiable"),
        ("json_schema", '{"items":' * 101 + "{}" + "}" * 101, "nested more than 100 levels deep"),
        ("json_schema", '{"items":' * 30_000 + "{}" + "}" * 30_000, "nested more than 100 levels deep"),
        ("json_schema", json.dumps({"enum": list(range(50_001))}), "more than 50000 values"),
        ("regex", "(a", "unclosed group"),
        ("regex", r"(a)\1", "backreferences"),
        ("choice", "[]", "at least one string"),
        ("choice", "[1]", "at least one string"),
        ("lark", "nothing", "neither a Lark grammar nor GBNF"),
        ("lark", "start: a", "unknown name"),
        ("lark", "start: <nope>", "no special token <nope>"),
        ("lark", "root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000, "nested too deeply"),
    ],
)
def test_what_cannot_be_compiled_is_refused_in_one_line(
    match: Match, kind: ConstraintKind, text: str, said: str
) -> None:
    with pytest.raises(UnsupportedGrammar) as refused:
        match(kind, text, "")
    assert said in str(refused.value)
    assert len(str(refused.value)) < 600
    assert "\n" not in str(refused.value)
