"""Structural tags in both of the forms that clients write."""

from typing import Any

import pytest
from numaserve.server.structured.types import UnsupportedGrammar

from tests.unit.structured.conftest import Match

_NUMBER = {"type": "json_schema", "json_schema": {"type": "integer"}}


def _newer(**form: Any) -> dict[str, Any]:
    return {"type": "structural_tag", "format": form}


def _tag(begin: str, content: dict[str, Any], end: str) -> dict[str, Any]:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


_CALLS = {
    "structures": [
        {"begin": "<fn=a>", "schema": {"type": "integer"}, "end": "</fn>"},
        {"begin": "<fn=b>", "schema": {"type": "boolean"}, "end": "</fn>"},
        {"begin": "@c(", "schema": {"type": "null"}, "end": ")"},
    ],
    "triggers": ["<fn=", "@c"],
}
_ANY = {"type": "any_text"}


def _triggered(**more: Any) -> dict[str, Any]:
    tags = [_tag("<fn=a>", _NUMBER, "</fn>"), _tag("<fn=b>", _ANY, "</fn>")]
    return _newer(type="triggered_tags", triggers=["<fn="], tags=tags, **more)


def _separated(**more: Any) -> dict[str, Any]:
    return _newer(type="tags_with_separator", tags=[_tag("<", _NUMBER, ">")], separator=", ", **more)


_SEQUENCE = _newer(
    type="sequence",
    elements=[{"type": "const_string", "value": "a/"}, {"type": "regex", "pattern": "[0-9]/x"}, _NUMBER],
)
_OR = _newer(type="or", elements=[{"type": "const_string", "value": "yes"}, _tag("no: ", _ANY, ".")])
_SPECIAL = _newer(type="triggered_tags", triggers=["<s>"], tags=[_tag("<s>go ", _NUMBER, "<s>!")])
_LAZY = _newer(**_tag("[", {"type": "regex", "pattern": ".*"}, "]"))


@pytest.mark.parametrize(
    ("tag", "text", "is_right"),
    [
        (_CALLS, "no call at all", True),
        (_CALLS, "x <fn=a>12</fn> y <fn=b>true</fn>@c(null) z", True),
        (_CALLS, "<fn=a>true</fn>", False),
        (_CALLS, "<fn=c>", False),
        (_CALLS, "<fn=a>12", False),
        (_triggered(), "x <fn=b>what < ever</fn> y <fn=a>1</fn>", True),
        (_triggered(at_least_one=True), "nothing", False),
        (_triggered(at_least_one=True), "x <fn=a>1</fn> y", True),
        (_triggered(at_least_one=True, stop_after_first=True), "x <fn=a>1</fn>", True),
        (_triggered(at_least_one=True, stop_after_first=True), "x <fn=a>1</fn> y", False),
        (_triggered(stop_after_first=True), "nothing", True),
        (_separated(), "", True),
        (_separated(at_least_one=True), "", False),
        (_separated(), "<1>, <2>", True),
        (_separated(), "<1><2>", False),
        (_separated(stop_after_first=True), "<1>, <2>", False),
        (_SEQUENCE, "a/7/x12", True),
        (_SEQUENCE, "a/7/x", False),
        (_OR, "yes", True),
        (_OR, "no: because of this.", True),
        (_OR, "no: because", False),
        (_SPECIAL, "text <s>go 1<s>!", True),
        (_SPECIAL, "text <s>stop", False),
        (_LAZY, "[abc]", True),
        (_LAZY, "[abc]d", False),
        (_newer(**_ANY), "anything", True),
    ],
)
def test_a_structural_tag_lets_through_what_it_says(
    match: Match,
    tag: object,
    text: str,
    is_right: bool,
) -> None:
    assert match("structural_tag", tag, text) is is_right


@pytest.mark.parametrize(
    ("tag", "name"),
    [
        ([], "an object"),
        ({}, "'structures' and 'triggers'"),
        ({"structures": [], "triggers": ["a"]}, "structures"),
        ({"structures": [{"begin": "a", "end": "b"}], "triggers": ["c"]}, "triggers"),
        ({"structures": [{"begin": "a", "end": "b"}, {"begin": "c", "end": "b"}], "triggers": ["a"]}, "begin"),
        ({"structures": [{"begin": "a"}], "triggers": ["a"]}, "end"),
        (_newer(type="qwen_xml_parameter", json_schema={}), "qwen_xml_parameter"),
        (_newer(type=["tag"]), "type"),
        (_newer(type="json_schema", json_schema={}, style="qwen_xml"), "style"),
        (_newer(type="any_text", excludes=["x"]), "excludes"),
        (_triggered(excludes=["x"]), "excludes"),
        (_newer(**_tag("a", {"type": "any_text", "excludes": ["x"]}, "b")), "excludes"),
        (_newer(type="sequence", elements=[_ANY, {"type": "const_string", "value": "a"}]), "any_text"),
        (_newer(type="sequence", elements=[_triggered()["format"], _NUMBER]), "triggered_tags"),
        (_newer(type="const_string", value=1), "value"),
        (_newer(type="json_schema", json_schema={"not": {}}), "not"),
    ],
)
def test_a_structural_tag_that_cannot_be_served_is_refused_with_what_is_wrong(
    match: Match,
    tag: object,
    name: str,
) -> None:
    with pytest.raises(UnsupportedGrammar, match=name):
        match("structural_tag", tag, "")
