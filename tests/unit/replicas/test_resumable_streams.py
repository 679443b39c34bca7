"""Streams of the ingress that go on elsewhere: what the client gets is what one server would have sent."""

import json
from typing import Any

import pytest

from deploy.ray.resume import Resumable

BODY = {"messages": [], "stream": True, "seed": 3}
TOKENS = [[1], [2, 3], [4], [5]]  # of the events with text; the end comes in one without


def served(asked: bytes, name: str) -> list[bytes]:
    """The events of a server that is asked for an answer, or the rest of one."""
    body = json.loads(asked)
    assert body["return_token_ids"]
    skipped, events = list(body.get("resume_token_ids", [])), []
    if not skipped:
        events.append({"choices": [{"delta": {"role": "assistant"}}], "prompt_token_ids": [9]})
    for tokens in TOKENS:
        if skipped:
            assert skipped[: len(tokens)] == tokens
            del skipped[: len(tokens)]
            continue
        events.append({"choices": [{"delta": {"content": f"<{tokens}>"}, "token_ids": tokens}]})
        events.append({"choices": [{"delta": {"content": "+"}, "token_ids": []}]})
    events += [{"choices": [{"delta": {}, "finish_reason": "stop", "token_ids": []}]}, {"choices": [], "usage": 7}]
    head = {"id": name, "created": ord(name)}
    return [b"data: " + json.dumps(head | each).encode() + b"\n\n" for each in events] + [b"data: [DONE]\n\n"]


def payloads(said: bytes) -> list[Any]:
    return [json.loads(line.removeprefix(b"data: ")) for line in said.split(b"\n\n")[:-2]]


def through(body: dict[str, Any], *lives: int) -> bytes:
    """What a client gets when the servers die after so many events each, but for the last one."""
    stream = Resumable.of("/v1/chat/completions", body)
    assert stream is not None
    asked, said = stream.first(), b""
    for name, life in zip("abc", (*lives, 99), strict=False):
        answer = b"".join(served(asked, name)[:life])
        # In pieces that do not end where events do; what is behind the last event is lost with its server.
        for begin in range(0, len(answer), 17):
            said += stream.take(answer[begin : begin + 17])
        if stream.ended:
            break
        asked = stream.rest()
    assert stream.ended
    return said


@pytest.mark.parametrize("first", range(12))
@pytest.mark.parametrize("second", range(8))
def test_servers_may_die_behind_any_events(first: int, second: int) -> None:
    said = through(BODY, first, second)
    alike = {name: payloads(said)[0][name] for name in ("id", "created")}
    assert payloads(said) == [each | alike for each in payloads(through(BODY))]
    assert said.endswith(b"data: [DONE]\n\n")


def test_token_ids_are_told_where_they_were_asked_for() -> None:
    plain, told = payloads(through(BODY, 4)), payloads(through(BODY | {"return_token_ids": True}, 4))
    assert "token_ids" not in json.dumps(plain)
    assert [choice["token_ids"] for event in told for choice in event["choices"] if choice.get("token_ids")] == TOKENS
    assert told[0]["prompt_token_ids"] == [9]


def test_an_answer_without_a_seed_gets_one_that_stays() -> None:
    stream = Resumable.of("/v1/completions", {"prompt": [1, 2], "stream": True})
    assert stream is not None
    seed = json.loads(stream.first())["seed"]
    stream.take(b"".join(served(stream.first(), "a")[:6]))
    rest = json.loads(stream.rest())
    assert (rest["seed"], rest["resume_token_ids"]) == (seed, [1, 2, 3])


@pytest.mark.parametrize(
    "fields",
    [
        {"stream": False},
        {"n": 2},
        {"logprobs": True},
        {"logprobs": 0},
        {"echo": True},
        {"prompt": ["a", "b"]},
        {"prompt": [[1], [2]]},
        {"stream_options": {"continuous_usage_stats": True}},
    ],
)
def test_what_no_other_server_could_go_on_with_exactly_is_not_resumable(fields: dict[str, Any]) -> None:
    assert Resumable.of("/v1/completions", {"prompt": "a", "stream": True} | fields) is None


@pytest.mark.parametrize(("path", "body"), [("/v1/messages", BODY), ("/v1/completions", None), ("/v1/completions", [])])
def test_other_routes_and_bodies_are_not_resumable(path: str, body: object) -> None:
    assert Resumable.of(path, body) is None


def test_an_error_that_a_server_tells_of_is_the_end() -> None:
    stream = Resumable.of("/v1/chat/completions", BODY)
    assert stream is not None
    event = b'data: {"error": {"message": "no"}}\n\n'
    assert stream.take(event) == event
    assert stream.ended


def test_a_sign_of_life_is_passed_on() -> None:
    stream = Resumable.of("/v1/chat/completions", BODY)
    assert stream is not None
    assert stream.take(b": ping\n\n") == b": ping\n\n"
