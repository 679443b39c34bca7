"""Draft tokens between the front end and workers: answers are the same to the last bit, whatever happens on the way."""

import asyncio

import pytest
from fake_worker import expected_tokens
from harness import GREEDY, TELLING_BODIES, Options, Server, serving, without_ids
from numaserve.server.speculation.server_drafters import ServerDrafters

from tests.support.drafters import Each, NoDrafters


class Oracle:
    """Drafts what a greedy request really says, but every fifth token."""

    def __init__(self, _salt: str) -> None: ...

    def draft(self, tokens: list[int], most: int) -> list[int]:
        true = expected_tokens(tokens, GREEDY, most)
        return [token if index % 5 else 10 for index, token in enumerate(true, len(tokens))]


ORACLES = Each(Oracle)
ACCEPTED = "accepted_prediction_tokens"


async def answered(server: Server, body: dict[str, object]) -> str:
    answer = await server.complete(**{"prompt": [10, 11], "max_tokens": 60, **body})
    return without_ids(answer.text)


@pytest.mark.parametrize("kind", TELLING_BODIES)
async def test_an_answer_is_the_same_to_the_last_bit_with_draft_tokens(kind: str) -> None:
    async with serving(Options(step_tokens=16)) as server:
        without = await answered(server, TELLING_BODIES[kind])
    async with serving(Options(step_tokens=16, drafters=ORACLES)) as server:
        assert await asyncio.gather(*(answered(server, TELLING_BODIES[kind]) for _ in range(3))) == [without] * 3
        assert server.pages()["active"] == 0


async def test_draft_tokens_save_steps() -> None:
    steps = []
    for drafters in (None, ORACLES):
        async with serving(Options(drafters=drafters)) as server:
            await server.complete(prompt=[10, 11], max_tokens=60)
            steps.append(server.engine._steps.steps)
    assert steps[1] < steps[0] / 2


async def test_a_prediction_saves_steps_as_far_as_it_is_right_and_usage_tells_it() -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 60, "temperature": 0, "ignore_eos": True}
    async with serving(Options(drafters=ServerDrafters(("prediction",)))) as server:

        async def asked(**fields: object) -> tuple[str, dict[str, int], int]:
            before = server.engine._steps.steps
            answer = (await server.client.post("/v1/chat/completions", json=body | fields)).json()
            details = answer["usage"]["completion_tokens_details"]
            return answer["choices"][0]["message"]["content"], details, server.engine._steps.steps - before

        text, _, steps = await asked()
        right = {"type": "content", "content": text}
        same, details, fewer = await asked(prediction=right)
        assert same == text
        assert fewer < steps / 2
        assert details[ACCEPTED] > 30
        assert details["rejected_prediction_tokens"] == 0
        assert await asked(prediction=right, speculative="off") == (text, {**details, ACCEPTED: 0}, steps)
        same, details, _ = await asked(prediction={"type": "content", "content": "?" + text[::-1]})
        assert same == text
        assert details[ACCEPTED] < 30


@pytest.mark.parametrize("kind", TELLING_BODIES)
async def test_an_answer_is_the_same_to_the_last_bit_with_a_draft_model(kind: str) -> None:
    async with serving(Options(step_tokens=16)) as server:
        without = await answered(server, TELLING_BODIES[kind])
    options = Options(step_tokens=16, drafters=NoDrafters(), worker_drafter="draft_model")
    async with serving(options) as server:
        assert await asyncio.gather(*(answered(server, TELLING_BODIES[kind]) for _ in range(3))) == [without] * 3
        assert server.pages()["active"] == 0
        drafted = server.engine._scheduler.drafted
        before = drafted.total()
        assert await answered(server, TELLING_BODIES[kind] | {"speculative": ["suffix"]}) == without
        assert drafted.total() == before
