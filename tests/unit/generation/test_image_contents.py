"""Contents with images, wherever turns are joined, folded, counted or written as plain text."""

from typing import Any

import pytest
from numaserve.server.answers.tools.formats import plain_format
from numaserve.server.answers.tools.types import Tool
from numaserve.server.generation.conversation.content import (
    characters,
    joined,
    num_images,
    parts_of,
    replaced,
    texts_of,
)
from numaserve.server.generation.conversation.images import Image, encoded_image, image_part, taken_out
from numaserve.server.generation.conversation.late_system import fold
from numaserve.server.generation.conversation.plain_tools import described, in_plain_text
from numaserve.server.generation.conversation.text_contents import TextContents
from numaserve.server.generation.conversation.turns import Turn, conversation_from, join_neighbours, with_system
from numaserve.server.tokenizer.types import ChatTemplateError

IMAGE = {"type": "image"}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def turn(role: str, content: Any, **more: Any) -> Turn:
    return {"role": role, "content": content, **more}


@pytest.mark.parametrize(
    ("contents", "whole"),
    [
        (["a", "b"], "a\nb"),
        ([], ""),
        (["a", [IMAGE], "b", "c"], [text("a"), IMAGE, text("b\nc")]),
        ([[IMAGE, text("a")], [text("b"), IMAGE], [IMAGE]], [IMAGE, text("a\nb"), IMAGE, IMAGE]),
    ],
)
def test_contents_are_joined_to_a_list_only_with_an_image(contents: list[Any], whole: Any) -> None:
    assert joined(contents) == whole


def test_images_are_replaced_in_order_and_texts_around_them_become_lines() -> None:
    content = joined(["a", [IMAGE, IMAGE], "b"])
    assert replaced(content, iter(["x", [IMAGE]])) == [text("a\nx"), IMAGE, text("b")]
    assert replaced(content, iter(["x", "y"])) == "a\nx\ny\nb"
    assert (texts_of(content), num_images(content), characters(content)) == (["a", "b"], 2, 2)


@pytest.mark.parametrize("role", ["user", "assistant", "system"])
def test_adjacent_turns_with_images_are_one(role: str) -> None:
    turns = [turn(role, "a"), turn(role, [IMAGE]), turn(role, "b", thinking="t", reasoning_content="t")]
    (whole,) = join_neighbours(turns, {role})
    assert whole == turn(role, [text("a"), IMAGE, text("b")], thinking="t", reasoning_content="t")


def test_a_late_system_turn_with_an_image_is_folded() -> None:
    turns = [turn("user", [IMAGE, text("a")]), turn("system", [text("b"), IMAGE]), turn("user", "c")]
    assert fold(turns) == [turn("user", [IMAGE, text("a\nb"), IMAGE, text("c")])]


def test_results_calls_and_instructions_with_images_are_written_as_plain_text() -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": {}}}
    turns = [
        turn("system", [text("s"), IMAGE]),
        turn("assistant", [IMAGE], tool_calls=[call]),
        turn("tool", [text("a"), IMAGE]),
        turn("tool", "b"),
    ]
    system, assistant, results = in_plain_text(turns, [described(Tool("f"))], plain_format())
    assert [part["type"] for part in system["content"]] == ["text", "image", "text"]
    assert [part["type"] for part in assistant["content"]] == ["image", "text"]
    assert results == turn(
        "user",
        [
            text("<tool_response>\na"),
            IMAGE,
            text("\n</tool_response>\n<tool_response>\nb\n</tool_response>"),
        ],
    )


def test_a_conversation_has_its_images_beside_the_turns() -> None:
    first, second = (encoded_image(param, "QUJD") for param in "ab")
    turns = [turn("user", [image_part(first), text("abc")]), turn("tool", [image_part(second)])]
    images = taken_out(turns)
    conversation = with_system("be kind", conversation_from(turns, images))
    assert conversation.messages == [
        turn("system", "be kind"),
        turn("user", [IMAGE, text("abc")]),
        turn("tool", [IMAGE]),
    ]
    assert (conversation.images, conversation.characters, conversation.needs_tools) == ([first, second], 10, True)
    assert "QUJD" not in repr(conversation)


def test_the_data_of_an_image_is_taken_once() -> None:
    image = encoded_image("a", "QUJD")
    assert isinstance(image, Image)
    assert image.encoded is not None
    assert (image.encoded.take(), image.encoded.take()) == ("QUJD", "")


class Template:
    """A chat template that writes contents of one form, or refuses the other."""

    def __init__(self, form: type, *, refuses: bool) -> None:
        self._form = form
        self._refuses = refuses

    def render_chat(self, messages: list[Turn], **_: Any) -> str:
        contents = [message["content"] for message in messages]
        if self._refuses and not all(isinstance(content, self._form) for content in contents):
            raise ChatTemplateError("not this form")
        return "".join(str(content) for content in contents if isinstance(content, self._form))


@pytest.mark.parametrize("refuses", [False, True])
def test_texts_become_lists_for_a_template_that_writes_lists_alone(refuses: bool) -> None:
    lists = TextContents(Template(list, refuses=refuses))
    assert [lists.render_chat([turn("user", "a")]) for _ in range(2)] == [str(parts_of("a"))] * 2
    assert TextContents(Template(str, refuses=refuses)).render_chat([turn("user", "a")]) == "a"
