"""What a server tells of its guesses, before a run and after it."""

import asyncio

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from numaserve.server.loadtest.options import Traffic
from numaserve.server.loadtest.report.speculation import Speculation, speculation_of
from numaserve.server.loadtest.target import open_target

TOLD = """\
# HELP numaserve_draft_tokens_total Guessed tokens that steps verified
# TYPE numaserve_draft_tokens_total counter
numaserve_draft_tokens_total{drafter="suffix",model_name="m",outcome="accepted"} 30.0
numaserve_draft_tokens_total{drafter="suffix",model_name="m",outcome="rejected"} 8.0
numaserve_draft_tokens_total{drafter="grammar",model_name="m",outcome="accepted"} 10.0
numaserve_draft_tokens_total{drafter="grammar",model_name="m",outcome="rejected"} 2.0
numaserve_generation_tokens_total{model_name="m"} 100.0
numaserve_request_generation_tokens_count{model_name="m"} 7.0
"""


def told(text: str, status: int = 200) -> Speculation | None:
    """What is known of a server that answers GET /metrics so."""

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(text=text, status=status)

    async def scenario() -> Speculation | None:
        application = web.Application()
        application.router.add_get("/metrics", metrics)
        async with (
            TestServer(application, host="127.0.0.1") as server,
            open_target(str(server.make_url("/v1")), Traffic()) as target,
        ):
            return speculation_of(await target.metrics())

    return asyncio.run(scenario())


def test_the_counters_of_all_drafters_count() -> None:
    assert told(TOLD) == Speculation(generated=100, accepted=40, rejected=10)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<html>",
        TOLD.replace("100.0", "NaN"),
        "# TYPE vllm:generation_tokens_total counter\nvllm:generation_tokens_total 5.0\n",
        TOLD.replace("numaserve_draft", "numaserve_other"),
        TOLD.replace("numaserve_generation", "numaserve_other"),
        'numaserve_generation_tokens_total{model_name="m"} five\nnumaserve_draft_tokens_total{outcome="accepted"} 1\n',
        'numaserve_draft_tokens_total{outcome="accepted\nnumaserve_generation_tokens_total 5\n',
    ],
)
def test_of_other_servers_nothing_is_known(text: str) -> None:
    assert told(text) is None


def test_a_server_that_does_not_answer_is_none_with_metrics() -> None:
    assert told(TOLD, 404) is None
    assert told(TOLD, 401) is None


def test_tokens_a_step_and_the_fraction_of_right_guesses_are_those_between_two_times() -> None:
    run = Speculation(generated=400, accepted=140, rejected=30).since(Speculation(100, 40, 10))
    assert run == Speculation(300, 100, 20)
    assert run.tokens_per_step == 1.5
    assert run.acceptance == pytest.approx(100 / 120)


def test_where_nothing_was_guessed_a_step_gives_a_token_and_no_fraction_is_known() -> None:
    assert Speculation(50, 0, 0).tokens_per_step == 1.0
    assert Speculation(50, 0, 0).acceptance is None
    assert Speculation(0, 0, 0).tokens_per_step is None


def test_of_a_server_that_has_begun_anew_nothing_is_known() -> None:
    assert Speculation(5, 1, 0).since(Speculation(100, 40, 10)) is None
