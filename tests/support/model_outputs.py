"""What the tests of parsers share: outputs cut into pieces, and the deltas joined."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st
from numaserve.server.answers.reasoning.format import ReasoningFormat
from numaserve.server.answers.tools.answer import output_parser
from numaserve.server.answers.tools.format import ToolFormat
from numaserve.server.answers.tools.types import OutputParser, Tool


@dataclass
class Answer:
    """The deltas of one output, joined."""

    content: str = ""
    reasoning: str = ""
    calls: list[list[str | None]] = field(default_factory=list)  # [id, name, arguments]

    @property
    def named(self) -> list[tuple[str | None, Any]]:
        """Names and arguments of the calls, the arguments as values."""
        return [(name, json.loads(arguments or "")) for _, name, arguments in self.calls]


def joined(parser: OutputParser, pieces: Iterable[str]) -> Answer:
    answer = Answer()
    for parsed in [*(parser.push(piece) for piece in pieces), parser.finish()]:
        answer.content += parsed.content
        answer.reasoning += parsed.reasoning
        for delta in parsed.calls:
            if delta.name is not None:
                assert delta.call == len(answer.calls)
                answer.calls.append([delta.id, delta.name, ""])
            call = answer.calls[-1]
            assert delta.call == len(answer.calls) - 1
            call[2] = (call[2] or "") + delta.arguments
    return answer


def parse(
    pieces: Iterable[str],
    calls: ToolFormat | None = None,
    thoughts: ReasoningFormat | None = None,
    tools: Sequence[Tool] = (Tool("f"), Tool("g")),
    prompt: str = "",
) -> Answer:
    parser = output_parser(calls, thoughts, tools, prompt)
    assert parser is not None
    return joined(parser, pieces)


def cut(text: str, places: Iterable[int]) -> list[str]:
    edges = [0, *sorted(min(place, len(text)) for place in places), len(text)]
    return [text[start:end] for start, end in pairwise(edges)]


def each_way_to_cut(text: str) -> Iterable[list[str]]:
    """All cuts in two, and into single characters."""
    yield list(text)
    yield from (cut(text, [place]) for place in range(len(text) + 1))


_FRAGMENTS = [
    "<",
    "</",
    ">",
    "|",
    '"',
    "'",
    "\\",
    "{",
    "}",
    "[",
    "]",
    "(",
    ")",
    ",",
    ":",
    "=",
    "\n",
    " ",
    "a",
    "é",
    "😀",
    "\u2028",
]
TEXTS = st.lists(st.sampled_from(_FRAGMENTS), max_size=12).map("".join) | st.text(max_size=12)
KEYS = st.from_regex(r"[a-z][a-z_0-9]{0,8}", fullmatch=True)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=8
)
ARGUMENTS = st.dictionaries(KEYS, VALUES, max_size=4)

_TYPES = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
    list: "array",
    dict: "object",
}


def schema_of(arguments: dict[str, Any]) -> dict[str, Any]:
    """A schema that `arguments` satisfy and that says of what type each of them is."""
    properties = {key: {"type": _TYPES[type(value)]} for key, value in arguments.items()}
    return {"type": "object", "properties": properties, "required": list(properties)}
