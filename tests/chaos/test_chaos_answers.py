"""What is compared of answers."""

import json
from typing import Any

import pytest

from tests.chaos.answers import Incomplete, is_beginning, joined, said
from tests.chaos.client import Asked
from tests.chaos.site import complaint_about
from tests.chaos.traffic import Request, draw_requests

STREAM = Request("stream", "/v1/completions", {"stream": True})


def event(index: int, text: str, finish: str | None = None) -> dict[str, Any]:
    logprobs = {"token_logprobs": [float(len(text))], "tokens": [text]}
    return {
        "id": "1",
        "created": 5,
        "choices": [{"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}],
    }


def stream_of(*events: dict[str, Any], done: bool = True) -> bytes:
    payloads = [json.dumps(each) for each in events] + ["[DONE]"] * done
    return b"".join(f"data: {payload}\n\n".encode() for payload in payloads)


def asked(data: bytes, *, status: int = 200, left: bool = False) -> Asked:
    return Asked(STREAM, 0, status=status, data=data, left=left)


def test_events_in_other_company_say_the_same() -> None:
    one = stream_of(event(0, "a"), event(1, "x"), event(0, "b", "length"), event(1, "y", "stop"))
    other = stream_of(event(1, "x"), event(0, "a"), event(1, "y", "stop"), event(0, "b", "length"))
    assert said(one, STREAM.path, streams=True) == said(b": a comment\n\n" + other, STREAM.path, streams=True)


@pytest.mark.parametrize("last", [event(0, "c", "length"), event(0, "b", "stop"), event(0, "b")])
def test_another_text_or_end_is_another_answer(last: dict[str, Any]) -> None:
    expected = said(stream_of(event(0, "a"), event(0, "b", "length")), STREAM.path, streams=True)
    complaint, different = complaint_about(asked(stream_of(event(0, "a"), last)), expected)
    assert complaint and different


def test_calls_of_tools_are_joined_by_their_index() -> None:
    parts: list[dict[str, Any]] = [
        {"index": 0, "id": "call_1", "function": {"name": "f", "arguments": ""}},
        {"index": 0, "function": {"arguments": '{"a":'}},
        {"index": 1, "id": "call_2", "function": {"name": "g", "arguments": "{}"}},
        {"index": 0, "function": {"arguments": "1}"}},
    ]
    events = [json.dumps({"choices": [{"index": 0, "delta": {"tool_calls": [part]}}]}) for part in parts]
    (choice,) = joined(events)["choices"]
    calls = [call["function"] for call in choice["delta"]["tool_calls"]]
    assert calls == [{"name": "f", "arguments": '{"a":1}'}, {"name": "g", "arguments": "{}"}]


def named(*events: dict[str, Any]) -> bytes:
    return b"".join(f"event: {each['type']}\ndata: {json.dumps(each)}\n\n".encode() for each in events)


def message(*texts: str, cached: int = 0, stop: str = "max_tokens") -> list[dict[str, Any]]:
    block = {"index": 0, "content_block": {"type": "text", "text": ""}}
    deltas = [{"index": 0, "delta": {"type": "text_delta", "text": text}} for text in texts]
    usage = {"input_tokens": 40 - cached, "cache_read_input_tokens": cached, "output_tokens": 3}
    return [
        {"type": "message_start", "message": {"id": f"msg_{cached}", "role": "assistant"}},
        {"type": "content_block_start"} | block,
        *({"type": "content_block_delta"} | delta for delta in deltas),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": stop}, "usage": usage},
        {"type": "message_stop"},
    ]


def response(*texts: str, whole: str, created: int = 0) -> list[dict[str, Any]]:
    deltas = [{"type": "response.output_text.delta", "output_index": 0, "delta": text} for text in texts]
    final = {"created_at": created, "usage": {"output_tokens": 3}, "output": [{"id": f"{created}", "text": whole}]}
    return [{"type": "response.created"}, *deltas, {"type": "response.completed", "response": final}]


def lines(*texts: str, count: int = 3, seconds: int = 0) -> bytes:
    each: dict[str, Any] = {"model": "m", "created_at": f"{seconds}", "done": False}
    told = [
        each | {"message": {"role": "assistant", "content": text}, "logprobs": [{"token": t} for t in text]}
        for text in texts
    ]
    end = {"message": {"role": "assistant", "content": ""}, "done": True, "eval_count": count, "eval_duration": seconds}
    return b"".join(json.dumps(line).encode() + b"\n" for line in [*told, each | end])


PING = named({"type": "ping"})
ONE_ANSWER = {
    "/v1/messages": [named(*message("a", "bc")), PING + named(*message("ab", "c", cached=32))],
    "/v1/responses": [named(*response("a", "bc", whole="abc")), named(*response("ab", "c", whole="abc", created=5))],
    "/api/chat": [lines("a", "bc"), lines("ab", "c", seconds=5)],
}
OTHERS = {
    "/v1/messages": [named(*message("a", "bd")), named(*message("a", "bc", stop="end_turn"))],
    "/v1/responses": [named(*response("a", "bd", whole="abc")), named(*response("a", "bc", whole="abd"))],
    "/api/chat": [lines("a", "bd"), lines("a", "bc", count=4)],
}


@pytest.mark.parametrize("path", ONE_ANSWER)
def test_streams_of_other_surfaces_say_the_same_however_they_are_cut(path: str) -> None:
    one, again = (said(data, path, streams=True) for data in ONE_ANSWER[path])
    assert one == again
    for data in OTHERS[path]:
        assert said(data, path, streams=True) != one


@pytest.mark.parametrize("path", ONE_ANSWER)
def test_a_stream_of_another_surface_that_breaks_off_is_a_failure(path: str) -> None:
    data, _ = ONE_ANSWER[path]
    separator = b"\n" if path == "/api/chat" else b"\n\n"
    for part in (b"", data[:-1], separator.join(data.split(separator)[:-2]) + separator):
        with pytest.raises(Incomplete):
            said(part, path, streams=True)


@pytest.mark.parametrize(
    "data", [stream_of(event(0, "a"), done=False), stream_of({"error": {"message": "lost"}}), b"", b"data: [DO"]
)
def test_a_stream_that_breaks_off_is_a_failure(data: bytes) -> None:
    with pytest.raises(Incomplete):
        said(data, STREAM.path, streams=True)
    complaint, different = complaint_about(asked(data), {})
    assert complaint and not different


def test_a_refusal_is_a_failure() -> None:
    complaint, different = complaint_about(asked(b"{}", status=503), {})
    assert complaint and not different


def test_who_leaves_has_the_beginning_of_the_answer() -> None:
    expected = said(stream_of(event(0, "a"), event(0, "b"), event(0, "c", "length")), STREAM.path, streams=True)
    part = stream_of(event(0, "a"), event(0, "b"), done=False) + b'data: {"choices": ['
    assert complaint_about(asked(part, left=True), expected) == ("", False)
    wrong = stream_of(event(0, "a"), event(0, "x"), done=False)
    assert complaint_about(asked(wrong, left=True), expected)[1]
    assert not is_beginning({"choices": [{"text": "abcd"}]}, expected)


def test_a_seed_draws_the_same_requests_and_every_kind() -> None:
    assert draw_requests(7, 60) == draw_requests(7, 60) != draw_requests(8, 60)
    assert {each.kind for each in draw_requests(7, 24)} == {each.kind for each in draw_requests(7, 300)}
