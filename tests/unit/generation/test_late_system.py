"""System turns after the first turn, in templates that write them, refuse them and leave them out."""

import pytest
from jinja2 import TemplateError
from numaserve.server.generation.conversation.late_system import LateSystem, fold
from numaserve.server.generation.conversation.turns import Turn
from numaserve.server.template.process import ClientsTemplate
from numaserve.server.tokenizer.types import ChatTemplateError

WRITES = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
REFUSES = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('only first') }}"
    "{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}"
)
LEAVES_OUT = (
    "{% for m in messages %}{% if m.role != 'system' or loop.first %}[{{ m.role }}]{{ m.content }}{% endif %}"
    "{% endfor %}"
)
ONLY_BEHIND_ANSWERS = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first and loop.previtem.role == 'system' %}"
    "{{ raise_exception('twice') }}{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}"
)


class Tokenizer:
    def __init__(self, template: str) -> None:
        self._template = ClientsTemplate(template)
        self.rendered = 0

    def render_chat(self, messages: list[Turn]) -> str:
        self.rendered += 1
        try:
            return self._template.render({"messages": messages, "add_generation_prompt": True}, {}, 10_000)
        except TemplateError as error:
            raise ChatTemplateError(str(error)) from error


def turn(role: str, content: str) -> Turn:
    return {"role": role, "content": content}


LATE = [turn("user", "a"), turn("system", "b"), turn("assistant", "c"), turn("user", "d")]
FOLDED = [turn("user", "a\nb"), turn("assistant", "c"), turn("user", "d")]


@pytest.mark.parametrize(
    ("template", "expected"), [(WRITES, LATE), (REFUSES, FOLDED), (LEAVES_OUT, FOLDED), (ONLY_BEHIND_ANSWERS, FOLDED)]
)
def test_a_late_turn_is_folded_where_the_template_does_not_write_it(template: str, expected: list[Turn]) -> None:
    tokenizer = Tokenizer(template)
    late = LateSystem(tokenizer)  # type: ignore[arg-type]
    for _ in range(2):
        assert late.folded(LATE) == expected
        tokenizer.render_chat(late.folded(LATE))
    assert tokenizer.rendered <= 3 + 2


def test_a_template_is_not_asked_for_a_conversation_without_late_turns() -> None:
    tokenizer = Tokenizer(REFUSES)
    early = [turn("system", "s"), *FOLDED]
    assert LateSystem(tokenizer).folded(early) is early  # type: ignore[arg-type]
    assert tokenizer.rendered == 0


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        ([turn("system", "a"), turn("system", "b"), turn("user", "c")], [turn("system", "a\nb"), turn("user", "c")]),
        ([turn("user", "a"), turn("system", "b"), turn("user", "c")], [turn("user", "a\nb\nc")]),
        ([turn("user", "a"), turn("user", "b")], [turn("user", "a"), turn("user", "b")]),
        (
            [turn("user", "a"), turn("assistant", "b"), turn("system", "c"), turn("system", "d"), turn("user", "e")],
            [turn("user", "a"), turn("assistant", "b"), turn("user", "c\nd\ne")],
        ),
        (
            [turn("user", "a"), turn("tool", "b"), turn("system", "c")],
            [turn("user", "a"), turn("tool", "b"), turn("user", "c")],
        ),
    ],
)
def test_folded_turns_are_joined_with_their_neighbours(turns: list[Turn], expected: list[Turn]) -> None:
    before = [dict(each) for each in turns]
    assert fold(turns) == expected
    assert turns == before


def test_the_prefix_stays_when_a_turn_is_added() -> None:
    longer = [*LATE, turn("assistant", "e"), turn("system", "f"), turn("user", "g")]
    assert fold(longer)[: len(FOLDED)] == FOLDED
