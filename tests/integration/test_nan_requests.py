"""A prompt that makes the model's logits NaN: its request ends with an error, and the server serves on."""

import pytest
from fake_worker import LATE_NAN_TOKEN, NAN_TOKEN, expected_tokens
from harness import GREEDY, Options, Server, events_of, gather, serving

SHARED = list(range(20, 90))
NAN = ("--nan",)
SPOILED = [*SHARED, NAN_TOKEN, 11]


def text_after(prompt: list[int], count: int) -> str:
    return "".join(f"w{token} " for token in expected_tokens(prompt, GREEDY, count))


async def is_served(server: Server, prompt: list[int], count: int = 8) -> None:
    answer = await server.complete(prompt=prompt, max_tokens=count)
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["text"] == text_after(prompt, count)


@pytest.mark.parametrize("overlap", [True, False])
async def test_one_request_gets_500_and_those_beside_it_their_answers(overlap: bool) -> None:
    async with serving(Options(ranks=2, overlap=overlap, faults=NAN)) as server:
        good = [[*SHARED, token] for token in range(30, 36)]
        jobs = [server.complete(prompt=prompt, max_tokens=20) for prompt in good]
        spoiled, *answers = await gather(server.complete(prompt=SPOILED, max_tokens=20), *jobs)
        assert spoiled.status_code == 500
        error = spoiled.json()["error"]
        assert (error["type"], error["code"]) == ("server_error", "generation_failed")
        assert "not numbers" in error["message"]
        for prompt, answer in zip(good, answers, strict=True):
            assert answer.json()["choices"][0]["text"] == text_after(prompt, 20)
        assert server.metric("nan_logits_total") == 1
        assert server.metric("request_outcomes_total", reason="error") == 1
        await is_served(server, [*SHARED, 11])
        assert server.pages()["active"] == 0


@pytest.mark.parametrize("overlap", [True, False])
async def test_a_stream_that_has_begun_ends_with_an_error_event(overlap: bool) -> None:
    async with serving(Options(overlap=overlap, faults=NAN)) as server:
        prompt = [*SHARED, LATE_NAN_TOKEN]
        answer = await server.complete(prompt=prompt, max_tokens=9, stream=True)
        assert answer.status_code == 200
        *chunks, last = events_of(answer.text)
        text = "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])
        assert text == text_after(prompt, 3)
        assert last["error"]["code"] == "generation_failed"
        assert server.metric("nan_logits_total") == 1
        await is_served(server, SHARED)
