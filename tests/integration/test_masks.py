"""Constrained requests over real processes: nobody but they notice that they are."""

import asyncio
import os
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
from fake_worker import FIRST_TOKEN, VOCAB, expected_tokens
from harness import GREEDY, Options, gather, generate, make_engine, run, running_engine, tokens_of
from numaserve.server.engine.engine import Engine
from numaserve.server.engine.masks import masks
from numaserve.server.engine.types import GenerationFailed, NotReady
from numaserve.server.metrics.metrics import Metrics
from numaserve.server.scheduler.matcher import ConstraintFailed, MaskState
from numaserve.server.scheduler.request import Request
from numaserve.shm_comm.mask_board import MaskBoard, create_mask_board
from numaserve.workers.interface.protocol import SamplingParams

from tests.support.scripted_matchers import Allowed, ScriptedMatcher, some_tokens

ALLOWED = some_tokens(VOCAB, FIRST_TOKEN)
PROMPT = [11, 12, 13]
HURRIED = Options(mask_grace_s=0.0, mask_patience_s=0.5)


def matcher() -> ScriptedMatcher:
    return ScriptedMatcher(ALLOWED)


def all_at(step: int) -> Allowed:
    """Every token after so many, else some."""
    return lambda output: set(range(VOCAB)) if len(output) == step else ALLOWED(output)


def constrained(prompt: list[int], count: int) -> list[int]:
    return expected_tokens(prompt, GREEDY, count, ALLOWED)


def prompts(count: int, seed: int) -> list[list[int]]:
    rng = random.Random(seed)
    shared = [rng.randrange(10, 1000) for _ in range(100)]
    return [
        shared[: rng.choice((0, 40, 100))] + [rng.randrange(10, 1000) for _ in range(rng.randint(1, 150))]
        for _ in range(count)
    ]


@pytest.fixture
def held_up() -> Iterator[threading.Event]:
    """What hanging matchers wait for: the end of the test."""
    event = threading.Event()
    yield event
    event.set()


async def outputs(options: Options, all_prompts: list[list[int]], count: int) -> list[list[int]]:
    """Every second request is constrained."""
    async with running_engine(options) as engine:
        jobs = [
            generate(engine, prompt, count, matcher=matcher if index % 2 == 0 else None)
            for index, prompt in enumerate(all_prompts)
        ]
        return [tokens_of(chunks) for chunks in await gather(*jobs)]


def expected(all_prompts: list[list[int]], count: int) -> list[list[int]]:
    return [
        constrained(prompt, count) if index % 2 == 0 else expected_tokens(prompt, GREEDY, count)
        for index, prompt in enumerate(all_prompts)
    ]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("prefix_cache", [False, True])
def test_constrained_and_free_requests_have_their_tokens_in_every_mode(
    ranks: int, overlap: bool, prefix_cache: bool
) -> None:
    some = prompts(24, seed=5)
    options = Options(ranks=ranks, overlap=overlap, prefix_cache=prefix_cache)
    assert run(outputs(options, some, 20)) == expected(some, 20)


async def test_a_matcher_works_in_threads_of_its_own_one_at_a_time() -> None:
    made: list[ScriptedMatcher] = []

    def make() -> ScriptedMatcher:
        made.append(matcher())
        return made[-1]

    async with running_engine(Options()) as engine:
        await gather(*(generate(engine, [20 + i], 10, matcher=make) for i in range(6)))
    assert [len(each.users) for each in made] == [10] * 6  # none after the last token, none twice
    assert {name.split("-")[0] for each in made for name in each.users} == {"matcher"}


async def test_each_of_n_sequences_has_a_matcher_of_its_own() -> None:
    async with running_engine(Options()) as engine:
        samplings = [SamplingParams(temperature=1.0, seed=seed) for seed in range(4)]
        requests = [Request("id", PROMPT, sampling, 12, matcher=matcher) for sampling in samplings]
        found: list[list[int]] = [[] for _ in requests]
        async for chunk in engine.admit(requests):
            found[chunk.index] += chunk.token_ids
    assert found == [expected_tokens(PROMPT, sampling, 12, ALLOWED) for sampling in samplings]
    assert len(set(map(tuple, found))) == 4


def _raise(error: Exception) -> NoReturn:
    raise error


def _fail() -> NoReturn:
    _raise(ConstraintFailed("no such thing can be said"))


def _break() -> NoReturn:
    _raise(KeyError("a defect"))


async def _one_ends_with(engine: Engine, bad: ScriptedMatcher, message: str) -> None:
    """`bad` ends its request with this message; a constrained and a free one beside it have their tokens."""
    others = [
        asyncio.create_task(generate(engine, [30], 30, matcher=matcher)),
        asyncio.create_task(generate(engine, [31], 30)),
    ]
    with pytest.raises(GenerationFailed, match=message):
        await generate(engine, PROMPT, 30, matcher=lambda: bad)
    found = [tokens_of(chunks) for chunks in await gather(*others)]
    assert found == [constrained([30], 30), expected_tokens([31], GREEDY, 30)]


@pytest.mark.parametrize("step", [0, 5])
@pytest.mark.parametrize(
    ("instead", "message"),
    [
        (_fail, "^no such thing can be said$"),
        (_break, masks._BROKEN),
        (lambda: MaskState.DROP, masks._NOTHING),
        (lambda: 77, masks._BROKEN),
    ],
)
async def test_a_matcher_that_fails_ends_its_own_request(step: int, instead, message: str) -> None:
    async with running_engine(Options()) as engine:
        await _one_ends_with(engine, ScriptedMatcher(ALLOWED, step, instead), message)


async def test_a_matcher_that_cannot_be_made_ends_its_own_request() -> None:
    async with running_engine(Options()) as engine:
        with pytest.raises(GenerationFailed, match="cannot be made"):
            await generate(engine, PROMPT, 5, matcher=lambda: _raise(ConstraintFailed("cannot be made")))
        assert tokens_of(await generate(engine, PROMPT, 5, matcher=matcher)) == constrained(PROMPT, 5)


@pytest.mark.parametrize("step", [0, 4])
async def test_a_matcher_that_hangs_ends_its_own_request_out_of_patience(step: int, held_up: threading.Event) -> None:
    def hang() -> MaskState:
        held_up.wait()
        return MaskState.FREE

    async with running_engine(HURRIED) as engine:
        await _one_ends_with(engine, ScriptedMatcher(ALLOWED, step, hang), masks._LATE)


async def test_as_many_hanging_matchers_as_there_are_threads_hold_up_no_other(held_up: threading.Event) -> None:
    def hang() -> MaskState:
        held_up.wait()
        return MaskState.FREE

    async with running_engine(replace(HURRIED, mask_patience_s=1.0)) as engine:
        bad = [
            asyncio.create_task(generate(engine, [40 + i], 9, matcher=lambda: ScriptedMatcher(ALLOWED, 0, hang)))
            for i in range(5)
        ]
        good = await gather(*(generate(engine, [50 + i], 20, matcher=matcher) for i in range(5)))
        assert [tokens_of(chunks) for chunks in good] == [constrained([50 + i], 20) for i in range(5)]
        ends = await asyncio.gather(*bad, return_exceptions=True)
        assert [str(end) for end in ends] == [masks._LATE] * 5


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("step", [0, 3])
async def test_nobody_waits_for_a_mask_that_does_not_come(overlap: bool, step: int, held_up: threading.Event) -> None:
    def hang() -> MaskState:
        held_up.wait()
        return MaskState.FREE

    # The one that hangs runs out of patience only long after the others have ended.
    options = replace(HURRIED, overlap=overlap, mask_patience_s=3600.0, deadline_s=3600.0)
    async with running_engine(options) as engine:
        hanging = ScriptedMatcher(all_at(step), step, hang)
        waiting = asyncio.create_task(generate(engine, PROMPT, 9, matcher=lambda: hanging))
        while len(hanging.users) <= step:
            await asyncio.sleep(0.001)
        jobs = [generate(engine, [30], 30, matcher=matcher), generate(engine, [31], 30)]
        assert [tokens_of(each) for each in await gather(*jobs)] == [
            constrained([30], 30),
            expected_tokens([31], GREEDY, 30),
        ]
        assert not waiting.done()
        held_up.set()
        assert tokens_of(await waiting) == expected_tokens(PROMPT, GREEDY, 9, hanging.allowed)


async def test_a_matcher_that_is_slow_but_in_time_is_waited_for() -> None:
    metrics = Metrics("fake")
    engine = make_engine(Options(), metrics)
    try:
        await engine.start()

        def slow() -> MaskState:
            time.sleep(0.1)
            return MaskState.FREE

        late = ScriptedMatcher(all_at(2), 2, slow)
        tokens = tokens_of(await generate(engine, PROMPT, 6, matcher=lambda: late))
        assert tokens == expected_tokens(PROMPT, GREEDY, 6, late.allowed)
        waited = metrics.registry.get_sample_value(
            "numaserve_step_stage_seconds_sum", {"model_name": "fake", "stage": "mask_wait"}
        )
        assert waited is not None
        assert waited > 0
        assert metrics.registry.get_sample_value("numaserve_mask_seconds_count", {"model_name": "fake"}) == 6
        with pytest.raises(GenerationFailed):
            await generate(engine, PROMPT, 6, matcher=lambda: ScriptedMatcher(ALLOWED, 1, _fail))
        assert metrics.registry.get_sample_value("numaserve_dropped_sequences_total", {"model_name": "fake"}) == 1
    finally:
        await engine.stop()


@pytest.mark.parametrize("overlap", [False, True])
async def test_a_client_that_leaves_lets_nobody_wait_for_its_mask(overlap: bool, held_up: threading.Event) -> None:
    def hang() -> MaskState:
        held_up.wait()
        return MaskState.FREE

    # The deadline is beyond the test's patience: were the row not dropped, nothing would end.
    async with running_engine(Options(overlap=overlap, mask_grace_s=3600.0, deadline_s=3600.0)) as engine:
        hanging = ScriptedMatcher(ALLOWED, 2, hang)
        stream = engine.admit([Request("id", PROMPT, GREEDY, 9, matcher=lambda: hanging)])
        await anext(stream)
        await anext(stream)
        other = asyncio.create_task(generate(engine, [31], 10))
        await asyncio.sleep(0.05)
        await stream.aclose()
        assert tokens_of(await other) == expected_tokens([31], GREEDY, 10)


async def test_a_restarted_group_has_a_board_of_its_own(tmp_path: Path) -> None:
    async with running_engine(Options(faults=("--die-at-step", "3", "--once", str(tmp_path / "died")))) as engine:
        before = engine._supervisor.board
        assert tokens_of(await generate(engine, PROMPT, 30, matcher=matcher)) == constrained(PROMPT, 30)
        assert engine._supervisor.restarts == 1
        assert engine._supervisor.board is not before


class WatchedBoard(MaskBoard):
    published = 0

    def publish(self, step: int, row: int, state: int, bits: int = 0) -> None:
        type(self).published += 1
        super().publish(step, row, state, bits)


async def test_a_batch_without_constraints_does_not_touch_the_board(monkeypatch: pytest.MonkeyPatch) -> None:
    def watched(rows: int, vocabulary: int) -> WatchedBoard:
        made = create_mask_board(rows, vocabulary)
        return WatchedBoard(made.fd, made.nonce)

    monkeypatch.setattr("harness.create_mask_board", watched)
    monkeypatch.setattr(WatchedBoard, "published", 0)
    async with running_engine(Options()) as engine:
        board = engine._supervisor.board
        assert isinstance(board, WatchedBoard)
        await gather(*(generate(engine, [20 + i], 20) for i in range(8)))
        assert board.published == 0
        assert os.fstat(board.fd).st_blocks * 512 == 4096  # only the header's page: no row has been looked at either
        assert not any(thread.name.startswith("matcher") for thread in threading.enumerate())
        await generate(engine, PROMPT, 20, matcher=matcher)
        assert board.published == 20


async def test_a_request_without_a_matcher_waits_for_no_mask() -> None:
    async with running_engine(Options()) as engine:
        tokens = tokens_of(await generate(engine, PROMPT, 5, sampling=SamplingParams(temperature=0.0, masked=True)))
    assert tokens == expected_tokens(PROMPT, GREEDY, 5)


async def test_without_a_board_constrained_requests_are_refused_and_others_served() -> None:
    async with running_engine(Options()) as engine:
        engine._supervisor._spec = replace(engine._supervisor._spec, board_factory=None)
        with pytest.raises(NotReady, match="no token masks"):
            engine.admit([Request("id", PROMPT, GREEDY, 3, matcher=matcher)])
        assert tokens_of(await generate(engine, PROMPT, 3)) == expected_tokens(PROMPT, GREEDY, 3)
