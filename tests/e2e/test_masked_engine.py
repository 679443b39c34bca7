"""Constrained requests over real workers: the same bits whatever the load, and trouble that stays with its cause."""

import asyncio
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from numaserve.server.engine.engine import Engine
from numaserve.server.engine.types import GenerationFailed
from numaserve.server.metrics.metrics import Metrics
from numaserve.server.scheduler.matcher import ConstraintFailed, MaskState
from numaserve.server.scheduler.request import Request
from numaserve.workers.interface.protocol import SamplingParams, TokenLogprobs

from tests.support import checkpoints
from tests.support.plan_limits import with_limits
from tests.support.played_drafts import played
from tests.support.real_engine import real_engine
from tests.support.same_bits import save_tiny_model, scheduler_config
from tests.support.scripted_matchers import ScriptedMatcher, some_tokens

ALLOWED = some_tokens(checkpoints.VOCAB, 3, share=5)
LIMITS = scheduler_config(max_slots=8, num_pages=128)
NEW_TOKENS = 40
SAMPLINGS = (
    SamplingParams(temperature=0.0, logprobs=5, token_ids_logprob=[3, 7, 200]),
    SamplingParams(temperature=1.0, top_p=0.9, seed=1, logprobs=2),
    SamplingParams(temperature=1.3, top_k=40, seed=2, logprobs=5, repetition_penalty=1.3, logit_bias={5: 3.0}),
    SamplingParams(temperature=1.0, min_p=0.02, seed=3, logprobs=0, min_position=60, suppress=[*range(3, 40)]),
)


@dataclass
class Answer:
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    named: list[list[float]] = field(default_factory=list)


def matcher() -> ScriptedMatcher:
    return ScriptedMatcher(ALLOWED)


def requests() -> list[Request]:
    """Two of three are constrained; some have a prefix in common."""
    rng = np.random.default_rng(1)
    shared = rng.integers(3, checkpoints.VOCAB, 70).tolist()
    made = []
    for index in range(9):
        prompt = shared[: 70 * (index % 2)] + rng.integers(3, checkpoints.VOCAB, 1 + 23 * index % 97).tolist()
        make = None if index % 3 == 2 else matcher
        made.append(Request("id", prompt, SAMPLINGS[index % 4], NEW_TOKENS, matcher=make))
    return made


async def answer_of(engine: Engine, request: Request) -> Answer:
    answer = Answer()
    async for chunk in engine.admit([request]):
        answer.tokens += chunk.token_ids
        answer.logprobs += chunk.logprobs
        answer.named += chunk.token_logprobs
    return answer


async def answers(engine: Engine, some: list[Request]) -> list[Answer]:
    return list(await asyncio.gather(*(answer_of(engine, request) for request in some)))


def check(some: list[Request], answers: list[Answer]) -> None:
    """Every answer is as long as it should be, and a constrained one keeps to its constraint."""
    for request, answer in zip(some, answers, strict=True):
        assert len(answer.tokens) == request.max_new_tokens
        if request.matcher is not None:
            assert all(token in ALLOWED(answer.tokens[:index]) for index, token in enumerate(answer.tokens))
        if request.sampling.token_ids_logprob:
            assert [len(named) for named in answer.named] == [3] * len(answer.tokens)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model("llama", tmp_path_factory.mktemp("model"))


@pytest.fixture
def workers_of_each_isa(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMASERVE_ISA", isa)


@pytest.mark.usefixtures("workers_of_each_isa")
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("tp", [1, 2])
async def test_the_same_bits_alone_batched_cached_chunked_and_retracted(model: Path, tp: int, overlap: bool) -> None:
    some = requests()
    async with real_engine(model, tp, limits=LIMITS, overlap=overlap, threads=3 - tp) as engine:
        alone = [await answer_of(engine, request) for request in some]
        assert await answers(engine, some) == alone
    check(some, alone)
    crowded = with_limits(LIMITS, num_pages=8, max_step_tokens=33, enable_prefix_cache=True)
    async with real_engine(model, tp, limits=crowded, overlap=overlap) as engine:
        assert await answers(engine, some) == alone
        assert await answers(engine, some) == alone
        info = engine.server_info()
        assert isinstance(info["retractions"], int)
        assert info["retractions"] > 0
        assert isinstance(info["prefix_hit_tokens"], int)
        assert info["prefix_hit_tokens"] > 0


@pytest.mark.usefixtures("drafts_are_free", "workers_of_each_isa")
@pytest.mark.parametrize("tp", [1, 2])
async def test_draft_tokens_right_wrong_and_forbidden_change_no_bit(model: Path, tp: int) -> None:
    some = requests()
    async with real_engine(model, tp, limits=LIMITS) as engine:
        alone = [await answer_of(engine, request) for request in some]
    drafters = played(some, alone, wrong=5)
    for limits in (LIMITS, with_limits(LIMITS, num_pages=8, max_step_tokens=33)):
        async with real_engine(model, tp, limits=limits, drafters=drafters) as engine:
            assert await answers(engine, some) == alone
            drafted = engine._scheduler.drafted
            assert drafted["played", True] > drafted["played", False] > 0


class Dawdling(ScriptedMatcher):
    """Takes longer than a step waits, now and then."""

    def write_mask(self, address: int, nbytes: int) -> MaskState:
        if random.Random(repr(self.output)).random() < 0.1:
            time.sleep(0.05)
        return super().write_mask(address, nbytes)


@pytest.mark.usefixtures("drafts_are_free")
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("tp", [1, 2, 3])
@pytest.mark.parametrize("drafted", [False, True])
async def test_masks_that_are_late_change_no_bit(model: Path, tp: int, overlap: bool, drafted: bool) -> None:
    some = requests()
    async with real_engine(model, tp, limits=LIMITS) as engine:
        alone = [await answer_of(engine, request) for request in some]
    metrics = Metrics("m")
    drafters = played(some, alone, wrong=5) if drafted else None
    slow = [replace(each, matcher=each.matcher and (lambda: Dawdling(ALLOWED))) for each in some]
    for limits in (LIMITS, with_limits(LIMITS, num_pages=8, max_step_tokens=33)):
        async with real_engine(
            model, tp, limits=limits, overlap=overlap, mask_grace_s=0.0, metrics=metrics, drafters=drafters
        ) as engine:
            assert await answers(engine, slow) == alone
    assert metrics.registry.get_sample_value("numaserve_late_masks_total", {"model_name": "m"})


@pytest.mark.usefixtures("drafts_are_free")
async def test_draft_tokens_change_no_token_of_the_reference(model: Path) -> None:
    some = [replace(request, max_new_tokens=12) for request in requests()[1:4]]
    async with real_engine(model, limits=LIMITS, backend="reference") as engine:
        alone = [await answer_of(engine, request) for request in some]
    async with real_engine(model, limits=LIMITS, backend="reference", drafters=played(some, alone, wrong=5)) as engine:
        for request, answer in zip(some, alone, strict=True):
            assert (await answer_of(engine, request)).tokens == answer.tokens
        assert engine._scheduler.drafted["played", True] > 0


async def test_the_reference_keeps_to_masks_too(model: Path) -> None:
    some = [replace(request, max_new_tokens=8) for request in requests()[:5]]
    async with real_engine(model, limits=LIMITS, backend="reference") as engine:
        check(some, await answers(engine, some))


@pytest.fixture
def held_up() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize("trouble", ["fails", "hangs", "allows nothing"])
async def test_trouble_ends_its_own_request_only(model: Path, backend, trouble: str, held_up: threading.Event) -> None:
    def instead() -> MaskState:
        if trouble == "fails":
            raise ConstraintFailed("it fails")
        held_up.wait()
        return MaskState.FREE

    def allowed(output: list[int]) -> set[int]:
        return set() if trouble == "allows nothing" and len(output) == 3 else ALLOWED(output)

    good = [replace(request, max_new_tokens=12) for request in requests()[:4]]
    async with real_engine(model, limits=LIMITS, mask_grace_s=0.0, mask_patience_s=1.0, backend=backend) as engine:
        alone = [await answer_of(engine, request) for request in good]
        script = ScriptedMatcher(allowed, 3, None if trouble == "allows nothing" else instead)
        bad = replace(good[0], matcher=lambda: script)
        *found, failure = await asyncio.gather(
            *(answer_of(engine, request) for request in good), answer_of(engine, bad), return_exceptions=True
        )
        check(good, found)
        if backend == "native":  # torch rounds otherwise in another company
            assert found == alone
        assert isinstance(failure, GenerationFailed)
        reason = {"fails": "it fails", "hangs": "in time", "allows nothing": "no next token"}[trouble]
        assert reason in str(failure)
        check(good[1:2], [await answer_of(engine, good[1])])
