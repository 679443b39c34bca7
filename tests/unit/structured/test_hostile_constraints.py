"""Constraints that crash or hang what compiles them, or fill its memory: each is refused, and the next one compiled."""

import json
import random
from collections.abc import Iterator

import pytest
from numaserve.server.structured.trial.trial import Trial
from numaserve.server.structured.types import Constraint, Limits, UnsupportedGrammar
from numaserve.server.structured.vocabulary import Vocabulary
from numaserve.server.tokenizer import load_tokenizer

from tests.support.tokenizer_builders import demo_gguf

_TOO_FAR = "the constraint has too many repetitions, or too many alternatives with a common prefix"
# Their least common multiple has sixteen digits, and llguidance looks for a remainder of it.
_MULTIPLES = Constraint(
    "json_schema", json.dumps({"allOf": [{"type": "integer", "multipleOf": n} for n in (9973, 9967, 9949, 9941)]})
)


def _chain(length: int) -> str:
    links = {f"a{i}": {"items": {"$ref": f"#/$defs/a{i + 1}"}} for i in range(length)}
    return json.dumps({"$defs": {**links, f"a{length}": {}}, "$ref": "#/$defs/a0"})


def _object(properties: int) -> str:
    return json.dumps({"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(properties)}})


HOSTILE = {
    "nested 30,000 deep": Constraint("json_schema", '{"items":' * 30_000 + "{}" + "}" * 30_000),
    "10,000 references in a chain": Constraint("json_schema", _chain(10_000)),
    "10,000 properties": Constraint("json_schema", _object(10_000)),
    "10 MB": Constraint("json_schema", json.dumps({"const": "x" * 10_000_000})),
    "a reference to itself": Constraint("json_schema", '{"$ref": "#"}'),
    "references in a circle": Constraint(
        "json_schema", '{"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}'
    ),
    "large multiples": _MULTIPLES,
    "thirty overlapping patterns": Constraint(
        "lark", "start: T\nT: " + " & ".join(f"/.*a.{{{i}}}/" for i in range(10, 40))
    ),
    "20,000 optional letters": Constraint("lark", "start: " + '"x"? ' * 20_000),
    "200,000 groups": Constraint("regex", "(" * 200_000 + "a" + ")" * 200_000),
    "40 doublings": Constraint(
        "lark", "start: T0\n" + "\n".join(f"T{i}: T{i + 1} T{i + 1}" for i in range(40)) + '\nT40: "a"'
    ),
    "20,000 rules in a chain": Constraint(
        "lark", "start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(20_000)) + '\nr20000: "a"'
    ),
    "too many choices": Constraint("choice", json.dumps([f"{i}" for i in range(50_001)])),
    "a control character in a pattern": Constraint("json_schema", '{"pattern": "\\u0000("}'),
    "half a character": Constraint("json_schema", '{"const": "\\ud800"}'),
    "1,000 properties that need not be there": Constraint("json_schema", _object(1000)),
    "a million times a thousand letters": Constraint("regex", "a{1000000000}"),
    "100,000 letters": Constraint("regex", "a{1,100000}"),
    "100,000 letters of an alphabet": Constraint("regex", "[a-z ]{1000,100000}"),
    "30,000 words": Constraint("regex", "(ab|cd){1,30000}"),
    "300 times 300 words": Constraint("regex", "((ab ){1,300}){1,300}"),
    "100,000 letters of a terminal": Constraint("lark", "start: T\nT: /[a-z]{1,100000}/"),
    "100,000 letters in a property": Constraint(
        "json_schema", json.dumps({"properties": {"x": {"type": "integer"}, "y": {"pattern": "^a{1,100000}$"}}})
    ),
    "a grammar that allows nothing": Constraint("lark", "start: start"),
}


@pytest.fixture(scope="module")
def trial(vocabulary: Vocabulary) -> Iterator[Trial]:
    trial = Trial(vocabulary, Limits(cpu_seconds=0.3, max_bytes=2**24))
    yield trial
    trial.stop()


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_constraint_is_refused(trial: Trial, name: str) -> None:
    with pytest.raises(UnsupportedGrammar) as refused:
        trial.run(HOSTILE[name])
    assert len(str(refused.value)) < 600
    assert "\n" not in str(refused.value)
    assert trial.run(Constraint("regex", "a")).grammar


@pytest.mark.parametrize("name", ["a reference to itself", "references in a circle", "a grammar that allows nothing"])
def test_a_constraint_that_no_text_matches_is_told_so(trial: Trial, name: str) -> None:
    with pytest.raises(UnsupportedGrammar, match="no text can match the constraint"):
        trial.run(HOSTILE[name])


def test_choices_that_begin_alike_are_refused_where_a_large_vocabulary_makes_too_much_of_them() -> None:
    demo = load_tokenizer(demo_gguf(), chat_template="")
    letters = random.Random(1)
    ends = ["".join(letters.choices("abcdefghijklmnop qrstuvwxyz", k=4)) for _ in range(20_000)]
    alike = Constraint("choice", json.dumps([16 * "a" + end for end in ends]))
    trial = Trial(Vocabulary.of(demo, demo.vocab_size), Limits(cpu_seconds=30.0, seconds=60.0))
    with pytest.raises(UnsupportedGrammar, match=_TOO_FAR):
        trial.run(alike)
    trial.stop()


SERVED = {
    "20,000 choices": Constraint("choice", json.dumps([f"{7919 * i}" for i in range(20_000)])),
    "20,000 letters": Constraint("regex", "[a-z]{1,20000}"),
    "a number": Constraint("regex", "[0-9]{3}-[0-9]{4}"),
}


@pytest.mark.parametrize("name", SERVED)
def test_what_counts_less_far_is_served(vocabulary: Vocabulary, name: str) -> None:
    trial = Trial(vocabulary, Limits(cpu_seconds=30.0, seconds=60.0))
    assert trial.run(SERVED[name]).grammar
    trial.stop()


@pytest.mark.parametrize(
    "name", [name for name in HOSTILE if name.startswith(("100,000", "30,000 words", "300 times"))]
)
def test_what_fails_late_in_an_answer_is_refused_with_the_reason(vocabulary: Vocabulary, name: str) -> None:
    trial = Trial(vocabulary, Limits(cpu_seconds=30.0, seconds=60.0))
    with pytest.raises(UnsupportedGrammar, match=_TOO_FAR):
        trial.run(HOSTILE[name])
    trial.stop()
