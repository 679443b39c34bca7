"""The tables of fields say what a client may send."""

import re

from tests.documentation import api


def test_a_field_names_the_types_of_its_objects() -> None:
    rows = "\n".join([api.chat_fields(), api.other_fields()])
    assert '| `tools` | list of at most 256 objects of `type` `"function"` or another `type` |' in rows
    items = '`"message"`, `"item_reference"`, `"function_call"`, `"function_call_output"`, `"reasoning"`'
    assert f"| `input` | text, or list of at most 16384 objects of `type` {items} |" in rows


def test_a_field_has_each_alternative_once() -> None:
    tables = [api.common_fields(), api.constraint_fields(), api.chat_fields(), api.message_fields(), api.other_fields()]
    taken = re.findall(r"^\| `[^|]+ \| ([^|]+) \|", "\n".join(tables), re.MULTILINE)
    assert len(taken) > 100
    alternatives = [re.split(", or ", each) for each in taken]
    assert [each for each in alternatives if len({*each}) < len(each)] == []
    assert not any("anythings" in each for each in taken)
