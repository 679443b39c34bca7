"""What an answer says, without what differs from one asking to the next: ids, times, and which tokens were cached."""

import json
from typing import Any

_DIFFERING = frozenset({"id", "created", "prompt_tokens_details", "system_fingerprint"})


class Incomplete(Exception):
    """The answer tells of an error, or has no end."""


def said(data: bytes, *, streams: bool) -> Any:
    """An answer's content. The events of a stream are joined. Raises `Incomplete`."""
    if not streams:
        return _same_each_time(json.loads(data))
    events = events_of(data)
    if not events or events[-1] != "[DONE]":
        raise Incomplete(f"the stream has no end after {len(events)} events: {data[-300:]!r}")
    return joined(events[:-1])


def joined(events: list[str]) -> Any:
    """The events of a stream as one answer. Raises `Incomplete`."""
    answer: dict[str, Any] = {}
    choices: dict[int, Any] = {}
    for text in events:
        event = json.loads(text)
        if "error" in event:
            raise Incomplete(str(event["error"]))
        for choice in event.pop("choices", []):
            index = choice.pop("index")
            choices[index] = _merged(choices.get(index), choice)
        answer |= {name: value for name, value in event.items() if value is not None}
    answer["choices"] = [choices[index] for index in sorted(choices)]
    return _same_each_time(answer)


def events_of(data: bytes) -> list[str]:
    """The payloads of the whole events in a part of a stream."""
    *whole, _ = data.split(b"\n\n")
    return [text[len("data: ") :] for text in (each.decode() for each in whole) if text.startswith("data: ")]


def is_beginning(part: Any, whole: Any) -> bool:
    """Whether `part`, which was joined from the first events of a stream, is how `whole` begins."""
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(is_beginning(value, whole.get(name)) for name, value in part.items())
    if isinstance(part, list):
        return isinstance(whole, list) and len(part) <= len(whole) and all(map(is_beginning, part, whole))
    if isinstance(part, str):
        return isinstance(whole, str) and whole.startswith(part)
    return part is None or bool(part == whole)


def _merged(old: Any, new: Any) -> Any:
    if old is None or new is None:
        return old if new is None else new
    if isinstance(new, dict):
        return old | {name: _merged(old.get(name), value) for name, value in new.items()}
    if isinstance(new, list):
        if new and isinstance(new[0], dict) and "index" in new[0]:  # calls of tools, in parts
            by_index = {each["index"]: each for each in old}
            by_index |= {each["index"]: _merged(by_index.get(each["index"]), each) for each in new}
            return list(by_index.values())
        return old + new
    return old + new if isinstance(new, str) else new


def _same_each_time(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _same_each_time(each) for name, each in value.items() if name not in _DIFFERING}
    return [_same_each_time(each) for each in value] if isinstance(value, list) else value
