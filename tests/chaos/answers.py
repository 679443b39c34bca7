"""What an answer says, without what differs from one asking to the next: ids, times, and which tokens were cached."""

import json
from collections import defaultdict
from typing import Any

_DIFFERING = frozenset(
    {"id", "created", "prompt_tokens_details", "system_fingerprint"}
    | {"input_tokens", "cache_read_input_tokens"}  # of Messages: together they are what `said` has as the prompt's
    | {"created_at", "call_id", "input_tokens_details"}  # of Responses
    | {"total_duration", "load_duration", "prompt_eval_duration", "eval_duration"}  # of Ollama
)


class Incomplete(Exception):
    """The answer tells of an error, or has no end."""


def said(data: bytes, path: str, *, streams: bool) -> Any:
    """The content of an answer of the route `path`. The events of a stream are joined. Raises `Incomplete`."""
    if not streams:
        return _same_each_time(json.loads(data))
    match path:
        case "/v1/messages":
            return _same_each_time(_message_of(_whole(events_of(data), "message_stop")))
        case "/v1/responses":
            return _same_each_time(_response_of(_whole(events_of(data), "response.completed", "response.incomplete")))
        case "/api/chat":
            return _lines_joined(data)
    events = events_of(data)
    if not events or events[-1] != "[DONE]":
        raise _endless(events)
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
    lines = (line for event in whole for line in event.decode().split("\n"))
    return [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]


def is_beginning(part: Any, whole: Any) -> bool:
    """Whether `part`, which was joined from the first events of a stream, is how `whole` begins."""
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(is_beginning(value, whole.get(name)) for name, value in part.items())
    if isinstance(part, list):
        return isinstance(whole, list) and len(part) <= len(whole) and all(map(is_beginning, part, whole))
    if isinstance(part, str):
        return isinstance(whole, str) and whole.startswith(part)
    return part is None or bool(part == whole)


def _endless(events: list[str]) -> Incomplete:
    return Incomplete(f"the stream has no end after {len(events)} events: {events[-1:]}")


def _whole(payloads: list[str], *ends: str) -> list[dict[str, Any]]:
    """Events that have types, of which the last is one of `ends`. Raises `Incomplete`."""
    events = [json.loads(each) for each in payloads]
    if not events or events[-1]["type"] not in ends:
        raise _endless(payloads)
    return events


def _message_of(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that Anthropic's events tell of, with each block's deltas joined."""
    message: dict[str, Any] = {}
    blocks: dict[int, Any] = {}
    deltas: defaultdict[int, str] = defaultdict(str)
    for event in events:
        match event["type"]:
            case "message_start":
                message |= event["message"]
            case "content_block_start":
                blocks[event["index"]] = event["content_block"]
            case "content_block_delta":
                deltas[event["index"]] += "".join(value for name, value in event["delta"].items() if name != "type")
            case "message_delta":
                message |= event["delta"] | {"usage": event["usage"]}
    usage = message["usage"]
    prompt = usage["input_tokens"] + usage["cache_read_input_tokens"]
    return message | {"content": blocks, "deltas": dict(deltas), "prompt": prompt}


def _response_of(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The response of the last event, and beside it the deltas of each item, joined."""
    deltas: defaultdict[str, str] = defaultdict(str)
    for event in events:
        if event["type"].endswith(".delta"):
            deltas[f"{event['type']} {event['output_index']}"] += event["delta"]
    return {"response": events[-1]["response"], "deltas": dict(deltas)}


def _lines_joined(data: bytes) -> dict[str, Any]:
    """Ollama's lines as one. Raises `Incomplete`."""
    *whole, _ = data.decode().split("\n")
    lines = [json.loads(line) for line in whole]
    if not lines or not lines[-1].get("done"):
        raise _endless(whole)
    answer: dict[str, Any] = {}
    for line in lines:
        same = {name: line.pop(name) for name in ("model", "done")} | {"role": line["message"].pop("role")}
        answer = _merged(answer, _same_each_time(line)) | same
    return answer


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
