from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from numaserve.server.tokenizer.stop import StopMatcher

TEXT = st.text("abc", max_size=30)
STOPS = st.lists(st.text("abc", min_size=1, max_size=5), max_size=4).map(tuple)


def brute_force(text: str, stops: tuple[str, ...]) -> tuple[str, str | None]:
    """Read character by character until a stop string ends there; the longest of those that do."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[: end - len(stop)], stop
    return text, None


def run(chunks: list[str], stops: tuple[str, ...]) -> tuple[list[str], str | None]:
    matcher = StopMatcher(stops)
    shown = []
    for chunk in chunks:
        text, matched = matcher.push(chunk)
        shown.append(text)
        if matched is not None:
            return shown, matched
    return [*shown, matcher.flush()], None


@given(text=TEXT, stops=STOPS, cuts=st.lists(st.integers(0, 30)))
def test_the_outcome_is_that_of_the_whole_text_however_it_is_cut(
    text: str, stops: tuple[str, ...], cuts: list[int]
) -> None:
    edges = [0, *sorted(cuts), len(text)]
    chunks = [text[start:end] for start, end in pairwise(edges)]
    shown, matched = run(chunks, stops)
    assert ("".join(shown), matched) == brute_force(text, stops)


@given(text=TEXT, stops=STOPS)
def test_no_more_is_held_back_than_could_start_a_stop_string(text: str, stops: tuple[str, ...]) -> None:
    matcher = StopMatcher(stops)
    seen = shown = ""
    for character in text:
        seen += character
        emitted, matched = matcher.push(character)
        if matched is not None:
            return
        shown += emitted
        held = seen[len(shown) :]
        assert seen == shown + held
        assert not held or any(stop.startswith(held) and stop != held for stop in stops)


def test_a_stop_string_that_spans_chunks_is_not_shown() -> None:
    assert run(["Hello\n", "\nUs", "er: more"], ("\n\nUser:",)) == (["Hello", "", ""], "\n\nUser:")


def test_what_only_looked_like_a_stop_string_is_shown() -> None:
    assert run(["a\n", "b"], ("\n\n",)) == (["a", "\nb", ""], None)


def test_without_stop_strings_nothing_is_held_back() -> None:
    assert run(["a", "b"], ()) == (["a", "b", ""], None)


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopMatcher(("a", ""))
