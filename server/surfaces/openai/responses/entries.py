"""Items of inputs and outputs, in the format of listings and as turns for chat templates."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any

import msgspec
from numaserve.server.generation.conversation.images import Image, taken_out
from numaserve.server.generation.conversation.messages import Conversation
from numaserve.server.generation.conversation.turns import Turn, assistant_turn, conversation_from, join_neighbours
from numaserve.server.http.fields.json_data import arguments_of

REFERENCE = "item_reference"
_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc", "function_call_output": "fco"}


class Entry(msgspec.Struct):
    """An item with its turn: JSON without the id, and the id. A reference to an item has only that item's id.

    The item is stored as JSON because it is seldom read: building objects several times for thousands of items costs
    more.
    """

    kind: str  # the item's `type`
    item: str = ""
    turn: Turn = {}
    id: str = ""
    images: list[Image] = []  # of the turn

    @classmethod
    def of(cls, item: dict[str, Any], turn: Turn, id: str = "") -> Entry:
        """Return the entry of an item without its id."""
        return cls(item["type"], msgspec.json.encode(item).decode(), turn, id, taken_out([turn]))

    def stored(self) -> Entry:
        """Return the entry in a stored response: without the data of its images."""
        images = [image.stored() for image in self.images]
        return msgspec.structs.replace(self, images=images) if images else self

    def listed(self) -> dict[str, Any]:
        """Return the item with its id."""
        item: dict[str, Any] = msgspec.json.decode(self.item)
        return {**item, "id": self.id}


class Given(msgspec.Struct):
    """The items of an input, validated, and without ids yet."""

    entries: list[Entry]


class Ids:
    """The ids of a response and its items. An id is unpredictable, and identifies the response of its item."""

    def __init__(self) -> None:
        self._secret = secrets.token_hex(24)
        self._count = 0

    @property
    def response(self) -> str:
        """The id of the response."""
        return f"resp_{self._secret}"

    def of_item(self, kind: str) -> str:
        """Return the id of the next item, which has this `type`."""
        self._count += 1
        return f"{_PREFIXES[kind]}_{self._secret}_{self._count}"


def response_of(item_id: str) -> str:
    """Return the id of the response that an item belongs to."""
    return f"resp_{item_id.partition('_')[2].rpartition('_')[0]}"


def input_text(text: str) -> dict[str, Any]:
    """Return a text that was given to the model."""
    return {"type": "input_text", "text": text}


def input_image() -> dict[str, Any]:
    """Return an image that was given to the model, and that the server does not store."""
    return {"type": "input_image", "detail": "auto", "image_url": None, "file_id": None}


def output_text(text: str) -> dict[str, Any]:
    """Return a text that the model generated."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def said(item: dict[str, Any]) -> Entry:
    """Return the entry of an output item, which later requests see without its log-probabilities."""
    nameless = {name: value for name, value in item.items() if name != "id"}
    if item["type"] == "function_call":
        name = qualified(item["name"], item.get("namespace"))
        return Entry.of(nameless, call_turn(item["call_id"], name, item["arguments"]), item["id"])
    text = item["content"][0]["text"]
    if item["type"] == "reasoning":
        return Entry.of(nameless, assistant_turn(thought=text), item["id"])
    return Entry.of({**nameless, "content": [output_text(text)]}, assistant_turn(text), item["id"])


def conversation_of(entries: Iterable[Entry]) -> Conversation:
    """Return the conversation of these items; the items of one answer are one turn."""
    given = list(entries)
    turns = join_neighbours((entry.turn for entry in given), {"assistant"})
    return conversation_from(turns, [image for entry in given for image in entry.images])


def call_turn(call_id: str, name: str, arguments: str) -> Turn:
    """Return the turn of a call of the function that the model knows by `name`."""
    function = {"name": name, "arguments": arguments_of(arguments)}
    return assistant_turn(calls=[{"id": call_id, "type": "function", "function": function}])


def qualified(name: str, namespace: str | None) -> str:
    """Return the name of a function in the prompt; clients join the two in the same way."""
    return f"{namespace}__{name}" if namespace else name


def of_function(name: str, namespace: str | None) -> dict[str, str]:
    """Return the fields of a call's item that identify its function."""
    return {"name": name, "namespace": namespace} if namespace else {"name": name}
