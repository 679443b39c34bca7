"""A response template that is none is refused in words, before it reads anything."""

from typing import Any

import pytest
from numaserve.server.answers.response_template.definition import template_of
from numaserve.server.answers.response_template.errors import BadTemplate

from tests.support.response_templates import WRITTEN, Written

GOOD: dict[str, Any] = {"start_anchor": "<", "fields": {"content": {}}}


@pytest.mark.parametrize("written", WRITTEN, ids=lambda each: each.name)
def test_a_good_one_is_taken(written: Written) -> None:
    assert template_of(written.template).fields.keys() == written.template["fields"].keys()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "is not an object"),
        ({**GOOD, "version": 2}, "version"),
        ({**GOOD, "type": "object"}, "unknown keys: type"),
        ({"fields": {"content": {}}}, "start_anchor"),
        ({**GOOD, "start_anchor_pattern": "<"}, "both start_anchor and start_anchor_pattern"),
        ({**GOOD, "start_anchor": ""}, "must be a string or a list of strings"),
        ({**GOOD, "defaults": []}, "defaults"),
        ({**GOOD, "fields": {}}, "fields must be"),
        ({**GOOD, "fields": {"a": {}, "b": {}}}, "more than one field"),
    ],
)
def test_what_is_wrong_with_the_whole_is_told(given: object, words: str) -> None:
    with pytest.raises(BadTemplate, match=words):
        template_of(given)


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("text", "is not an object"),
        ({"x-regex": "a"}, "unknown keys: x-regex"),
        ({"open": []}, "open must be a string or a list of strings"),
        ({"open": ["a", 1]}, "open must be a string or a list of strings"),
        ({"open": "a", "open_pattern": "a"}, "both open and open_pattern"),
        ({"open_pattern": "("}, "invalid regular expression"),
        ({"open_pattern": "(" * 5000 + ")" * 5000}, "invalid regular expression"),
        ({"close_pattern": 1}, "not a string"),
        (
            {"open_pattern": "(?P<name>a)"},
            "open or close has named groups, but transform is missing; set transform too",
        ),
        ({"content": "yaml"}, "content must be one of"),
        ({"content": ["json"]}, "content must be one of"),
        ({"content_args": []}, "content_args must be an object"),
        ({"content": "json", "content_args": {"string_delims": ["<>"]}}, "string_delims"),
        ({"content": "xml-inline"}, "group named 'key'"),
        (
            {"content": "xml-inline", "content_args": {"tag_pattern": "("}},
            "tag_pattern is not a valid regular expression",
        ),
        ({"content": "kv-lines", "content_args": {"kv_sep": ""}}, "kv_sep"),
        ({"content": "kv-lines", "content_args": {"value_parser": "int"}}, "value_parser"),
        ({"content": "kv-lines", "content_args": {"value_parser": {"name": "x"}}}, "content must be one of"),
        ({"join": "\n"}, "requires repeats"),
        (
            {"transform": {"a": ["say {content}"]}},
            "a string in transform mixes a placeholder with other text; a placeholder must be the whole string",
        ),
        ({"transform_each": True}, "transform_each is true, but transform is missing; set transform too"),
        ({"transform_each": "yes", "transform": {}}, "true or false"),
    ],
)
def test_what_is_wrong_with_a_field_is_told_with_its_name(field: object, words: str) -> None:
    with pytest.raises(BadTemplate, match=f"field content.*{words}"):
        template_of({**GOOD, "fields": {"content": field}})
