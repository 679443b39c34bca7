"""Every text that can reach a user keeps the rules, and the rules find what they are for."""

import pytest

from tests.documentation.texts import Text, all_texts
from tests.documentation.texts.rules import broken_rules


@pytest.fixture(scope="module")
def texts() -> list[Text]:
    return list(all_texts())


def test_every_text_keeps_the_rules(texts: list[Text]) -> None:
    broken = [f"{each.place}: {rule}\n    {each.text}" for each in texts for rule in broken_rules(each.text)]
    assert not broken, f"{len(broken)} broken rules (CONTRIBUTING.md, Texts):\n" + "\n".join(broken)


def test_texts_come_from_every_kind_of_source(texts: list[Text]) -> None:
    places = {each.place for each in texts}
    kinds = (".py", ".cc", ".h", ".js", ".html", ".service", "alerts.yml ", "numaserve.json ")
    shown = ("numaserve serve --help", "openapi.json ", "/metrics ")
    assert not [kind for kind in (*kinds, *shown) if not any(kind in place for place in places)]


BREAKING = {
    "What runs the model.": "'What': open with a noun or a verb",
    "Of each answer.": "'Of': open with a noun or a verb",
    "It ends. Of a stream only the rest is sent; not more.": "'. Of a stream only the rest is sent;': put the subject",
    "At most so many cores.": "'so many': name the number or the limit",
    "There are as many as may be.": "'as may': name the limit",
    "The kernel tells of nodes.": "'tells': report",
    "The masks are made anew.": "'anew': no idiom",
    "Tokens that a drafter guessed.": "'guessed': draft token",
    "The rank beside it.": "'beside': next to",
    "The key stands behind it.": "'behind': after",
    "Servers answer by turns.": "'by turns': alternately",
    "The format in which a model answers.": "'in which': split the sentence",
    f"The {'very ' * 24}end.": "a sentence of 26 words: split it",
}


@pytest.mark.parametrize("text", BREAKING)
def test_a_rule_finds_what_it_is_for(text: str) -> None:
    assert [rule for rule in broken_rules(text) if rule.startswith(BREAKING[text])]


@pytest.mark.parametrize(
    "text",
    [
        "The queue is full: 128 requests are running or waiting (limit 128). Retry after 5 s.",
        "What is the capital of France?",
        "The server listens behind a proxy.",
        "So many that memory runs out.",
        "Unknown key 'beside'; the keys are `behind` and \"told\".",
        f"The {'very ' * 23}end.",
        f"The {'very ' * 20}end. It has {'more ' * 20}words.",
    ],
)
def test_a_text_that_keeps_the_rules_breaks_none(text: str) -> None:
    assert [*broken_rules(text)] == []


def test_a_text_that_breaks_two_rules_is_reported_for_both() -> None:
    assert len([*broken_rules("What a constraint allows cannot be told.")]) == 2
