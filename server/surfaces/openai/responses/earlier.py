"""Lookup of items in stored responses: all items of a response, a page of them, or single items by id."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from numaserve.server.http.errors import bad_request
from numaserve.server.surfaces.openai.responses.entries import REFERENCE, Entry, Ids, response_of
from numaserve.server.surfaces.openai.responses.store import ResponseStore, entries_in


def entries_of_response(store: ResponseStore, owner: bytes, response_id: str) -> list[Entry]:
    """Return the items that a response was generated from, and its own. Raises `ApiError`."""
    kept = store.get(owner, response_id)
    if kept is None:
        message = "No stored response has this id. Send the conversation as 'input'."
        raise bad_request(message, "previous_response_id", "previous_response_not_found")
    return [*entries_in(kept.given), *entries_in(kept.said)]


def resolved(store: ResponseStore, owner: bytes, entries: Sequence[Entry], ids: Ids) -> Iterator[Entry]:
    """Yield the items of an input, with ids; a reference is replaced by its item. Raises `ApiError`."""
    found: dict[str, Entry] = {}  # items of all responses looked up so far that were not referred to yet
    seen: set[str] = set()
    for index, entry in enumerate(entries):
        if entry.kind != REFERENCE:
            entry.id = ids.of_item(entry.kind)
            yield entry
            continue
        response_id = response_of(entry.id)
        if response_id not in seen:
            seen.add(response_id)
            kept = store.get(owner, response_id)
            found |= {} if kept is None else {each.id: each for each in entries_in(kept.said)}
        # Each only once: repeated references to a long item would make a conversation larger than any body.
        item = found.pop(entry.id, None)
        if item is None:
            message = (
                "No stored response has an item with this id, or the input refers to it twice. Send the item itself."
            )
            raise bad_request(message, f"input[{index}]", "item_not_found")
        yield item


def page(entries: Sequence[Entry], limit: int, after: str | None) -> dict[str, object]:
    """Return at most `limit` items after the item with the id `after`. Raises `ApiError`."""
    start = 0
    if after is not None:
        start = next((index for index, entry in enumerate(entries, 1) if entry.id == after), 0)
        if start == 0:
            raise bad_request("The input of this response has no item with this id.", "after", "item_not_found")
    data = [entry.listed() for entry in entries[start : start + limit]]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": start + limit < len(entries),
    }
