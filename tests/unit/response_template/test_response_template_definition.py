"""A response template that is none is refused in words, before it reads anything."""

from typing import Any

import pytest
from numaserve.server.response_template.definition import template_of
from numaserve.server.response_template.errors import BadTemplate

from tests.support.response_templates import WRITTEN, Written

GOOD: dict[str, Any] = {"start_anchor": "<", "fields": {"content": {}}}


@pytest.mark.parametrize("written", WRITTEN, ids=lambda each: each.name)
def test_a_good_one_is_taken(written: Written) -> None:
    assert template_of(written.template).fields.keys() == written.template["fields"].keys()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "no object"),
        ({**GOOD, "version": 2}, "version"),
        ({**GOOD, "type": "object"}, "keys that are not known: type"),
        ({"fields": {"content": {}}}, "start_anchor"),
        ({**GOOD, "start_anchor_pattern": "<"}, "start_anchor and start_anchor_pattern"),
        ({**GOOD, "start_anchor": ""}, "must be a text"),
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
        ("text", "no object"),
        ({"x-regex": "a"}, "keys that are not known: x-regex"),
        ({"open": []}, "open must be a text"),
        ({"open": ["a", 1]}, "open must be a text"),
        ({"open": "a", "open_pattern": "a"}, "open and open_pattern"),
        ({"open_pattern": "("}, "cannot be used"),
        ({"open_pattern": "(" * 5000 + ")" * 5000}, "cannot be used"),
        ({"close_pattern": 1}, "no text"),
        ({"open_pattern": "(?P<name>a)"}, "named groups need a transform"),
        ({"content": "yaml"}, "no known kind"),
        ({"content": ["json"]}, "no known kind"),
        ({"content_args": []}, "arguments of its content"),
        ({"content": "json", "content_args": {"string_delims": ["<>"]}}, "string_delims"),
        ({"content": "xml-inline"}, "group named key"),
        ({"content": "xml-inline", "content_args": {"tag_pattern": "("}}, "cannot be used"),
        ({"content": "kv-lines", "content_args": {"kv_sep": ""}}, "kv_sep"),
        ({"content": "kv-lines", "content_args": {"value_parser": "int"}}, "value_parser"),
        ({"content": "kv-lines", "content_args": {"value_parser": {"name": "x"}}}, "no known kind"),
        ({"join": "\n"}, "needs repeats"),
        ({"transform": {"a": ["say {content}"]}}, "placeholder and more"),
        ({"transform_each": True}, "needs a transform"),
        ({"transform_each": "yes", "transform": {}}, "true or false"),
    ],
)
def test_what_is_wrong_with_a_field_is_told_with_its_name(field: object, words: str) -> None:
    with pytest.raises(BadTemplate, match=f"field content.*{words}"):
        template_of({**GOOD, "fields": {"content": field}})
