import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from numaserve.server.answers.tools.json_cutter import JsonCutter

from tests.support.model_outputs import VALUES, cut


def run(pieces: list[str]) -> tuple[str, str, JsonCutter]:
    """What was cut out, what was left, and the cutter."""
    cutter, taken, left = JsonCutter(), [], ""
    for piece in pieces:
        end = 0 if cutter.broken else cutter.take(piece, 0, taken.append)
        left += piece[end:]
    if not cutter.done:
        cutter.end()
    return "".join(taken), left, cutter


@given(
    value=VALUES, indent=st.sampled_from([None, 0, 2]), ascii_only=st.booleans(), places=st.lists(st.integers(0, 99))
)
def test_a_value_is_cut_out_of_what_follows(
    value: Any, indent: int | None, ascii_only: bool, places: list[int]
) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    taken, left, cutter = run(cut(text + "}, tail", places))
    assert (taken, left) == (text, "}, tail")
    assert cutter.done and not cutter.broken


@given(text=st.text(alphabet='{}[],:"\\truefalsn0123.-+eE \n', max_size=12))
def test_what_is_whole_is_json_and_what_is_json_is_whole(text: str) -> None:
    taken, left, cutter = run([text])
    try:
        json.loads(text, strict=False)
        is_json = True
    except ValueError:
        is_json = False
    assert cutter.done != cutter.broken
    assert (cutter.done and not left.strip()) == is_json
    if cutter.done:
        json.loads(taken)


@pytest.mark.parametrize(
    "text", ['{"a" 1}', "{'a': 1}", '{"a": 1,}', "[1,]", "[1}", "01", "tru ", '"\\x"', '"\\u12g4"', "}", "NaN", "-"]
)
def test_what_is_no_json_is_broken(text: str) -> None:
    taken, left, cutter = run([text])
    assert cutter.broken
    assert taken + left == text


def test_line_breaks_in_strings_become_escapes() -> None:
    taken, _, cutter = run(['{"code": "a\n\tb\x00"}'])
    assert cutter.done
    assert json.loads(taken) == {"code": "a\n\tb\x00"}


def test_depth_has_no_limit() -> None:
    text = "[" * 20_000 + "]" * 20_000
    taken, _, cutter = run([text])
    assert cutter.done and taken == text
