"""A model in pipeline stages has the bits of the same model in one stage with as many ranks."""

import asyncio
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from numaserve.server.speculation import speculation
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.protocol import SamplingParams, SeqPlan, SlotInit, StepPlan
from numaserve.workers.interface.settings import ModelSettings
from numaserve.workers.models.load import load_model_config

from tests.support import checkpoints
from tests.support.chat_model import write_model
from tests.support.played_drafts import played
from tests.support.rank_group import RankGroup
from tests.support.real_server import RealServer
from tests.support.same_bits import FEW_PAGES, make_group, random_requests, scheduler_config, tiny_model
from tests.support.traffic import Answer, Request, Traffic, assert_serves, each_alone

STREAMS = 6


@dataclass
class Subject:
    """A group of workers in stages, requests, and what one stage answers to each of them alone."""

    group: RankGroup
    stages: int
    requests: list[Request]
    alone: list[Answer]

    def traffic(self, ahead: int, **changes: Any) -> Traffic:
        """A scheduler that knows the stages, with `ahead` plans in flight."""
        return Traffic(self.group, scheduler_config(stages=self.stages, **changes), ahead=ahead)


@pytest.fixture(
    scope="module",
    params=[("llama", 1, 2), ("qwen2_moe", 2, 2), ("deepseek_v3", 1, 3)],
    ids=lambda each: f"{each[0]}-{each[1]}x{each[2]}",
)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    name, tp, stages = request.param
    model = checkpoints.save(tiny_model(name, num_hidden_layers=3), tmp_path_factory.mktemp(name))
    requests = random_requests()
    with make_group(model, tp) as whole:
        alone = each_alone(whole, scheduler_config(), requests)
    with make_group(model, tp, stages=stages) as group:
        yield Subject(group, stages, requests, alone)


@pytest.mark.parametrize("ahead", [1, 3])
def test_stages_change_no_bit(subject: Subject, ahead: int) -> None:
    ahead = min(ahead, subject.stages)
    for changes in ({}, {"max_step_tokens": 64}, {"enable_prefix_cache": True}, {"num_pages": FEW_PAGES}):
        traffic = subject.traffic(ahead, **changes)
        assert_serves(traffic, subject.requests, subject.alone)
        assert not any(seq.from_previous for plan in traffic.plans for seq in plan.seqs)
    assert ahead == 1 or traffic.scheduler.stats().retractions > 0


def test_plans_in_flight_divide_the_sequences(subject: Subject) -> None:
    traffic = subject.traffic(subject.stages)
    assert traffic.serve(subject.requests) == subject.alone
    decodes = [{seq.slot for seq in plan.seqs if len(seq.tokens) == 1} for plan in traffic.plans]
    overlapping = [index for index in range(1, len(decodes)) if decodes[index] & decodes[index - 1]]
    together = [index for index in range(1, len(decodes)) if decodes[index] and decodes[index - 1]]
    # A sequence that is left alone follows itself.
    assert len(overlapping) < len(together) / 3


def test_draft_tokens_change_no_bit_of_stages(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speculation, "BLIND", 12)
    config = scheduler_config(stages=subject.stages)
    traffic = Traffic(subject.group, config, ahead=2, drafters=played(subject.requests, subject.alone, wrong=7))
    assert_serves(traffic, subject.requests, subject.alone)
    assert min(traffic.scheduler.drafted["played", accepted] for accepted in (True, False)) > 50


def test_a_plan_that_one_stage_refuses_is_refused_by_all_and_the_next_one_served(subject: Subject) -> None:
    group = subject.group
    sampling = SamplingParams(temperature=0.0)
    # Only the first stage knows the rows of the vocabulary.
    unknown = SeqPlan(0, 0, [1 << 20], pages=[0], init=SlotInit(sampling), sample=True)
    group.send(StepPlan(900, [unknown]))
    assert len(group.receive_failures()) == len(group.ready)
    assert subject.traffic(1).serve(subject.requests[:1]) == subject.alone[:1]


async def _streams(server: RealServer, victim: int | None = None) -> list[list[Any]]:
    """The tokens and log-probabilities of all streams; the process `victim` is killed when they have begun."""

    async def ask(client: httpx.AsyncClient, index: int) -> list[Any]:
        body = {"model": server.model, "prompt": f"Once upon {index} times", "max_tokens": 48, "ignore_eos": True}
        more = {"temperature": index % 2, "seed": index, "logprobs": 2}
        answer = await client.post("/v1/completions", json=body | more)
        assert answer.status_code == 200, answer.text
        found = answer.json()["choices"][0]["logprobs"]
        return [found["tokens"], found["token_logprobs"], found["top_logprobs"]]

    async with server.client() as client:
        asked = [asyncio.ensure_future(ask(client, index)) for index in range(STREAMS)]
        if victim is not None:
            while (await client.get("/metrics")).text.find("generation_tokens_total{model_name") < 0:
                await asyncio.sleep(0.05)
            os.kill(victim, signal.SIGKILL)
        return await asyncio.gather(*asked)


def test_a_worker_of_any_stage_that_dies_costs_no_request(tmp_path: Path) -> None:
    model = str(write_model(tmp_path))
    options = ("--context-length", "256")
    with RealServer("--tp", "1", *options, model=model) as server:
        undisturbed = asyncio.run(_streams(server))
    with RealServer("--tp", "1", "--pp", "2", *options, model=model) as server:
        for stage in range(2):
            assert asyncio.run(_streams(server, server.worker_pids()[stage])) == undisturbed
        assert server.metrics()["worker_restarts_total signal"] == 2


def test_models_that_cannot_be_divided_are_refused(tmp_path: Path) -> None:
    model = write_model(tmp_path)
    with pytest.raises(OperatorError, match="9 pipeline stages exceed the model's 4 layers: use at most 4"):
        load_model_config(model, ModelSettings(stage=0, stages=9))
