"""Sequences that are admitted together: one stream, one end."""

import weakref
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import cast

import pytest
from numaserve.server.engine.requests.registry import LiveRequests
from numaserve.server.engine.requests.stream import Stream
from numaserve.server.engine.types import GenerationFailed, RequestTooLong
from numaserve.server.metrics.metrics import Metrics
from numaserve.server.scheduler.client import Client
from numaserve.server.scheduler.matcher import TokenMatcher
from numaserve.server.scheduler.request import Request
from numaserve.server.scheduler.scheduler import Scheduler
from numaserve.server.scheduler.sequence import Sequence, SequenceUpdate
from numaserve.server.tokenizer.types import TokenizerProtocol
from numaserve.workers.interface.protocol import SamplingParams

from tests.support.plan_limits import plan_limits


class Letters:
    """Token i is the letter of code i."""

    hidden_token_ids = frozenset[int]()

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id])


class NoMatcherWork:
    """Matchers make no masks, and there is no thread for them."""

    def submit(self, work: Callable[[], None]) -> None: ...

    def submit_slow(self, work: Callable[[], None], client: Client) -> None: ...

    def close(self) -> None: ...


class Run:
    def __init__(self) -> None:
        self.scheduler = Scheduler(plan_limits(num_pages=16, context_length=64))
        self.metrics = Metrics("m")
        self.room = 0
        self.stream: Stream
        self.live = LiveRequests(
            self.scheduler,
            cast(TokenizerProtocol, Letters()),
            self.metrics,
            board=lambda: None,
            on_end=self._on_end,
            on_mask=lambda: None,
            mask_patience_s=60.0,
            matcher_work=NoMatcherWork(),
        )

    def _on_end(self) -> None:
        self.room += 1

    def advance(self, index: int, letter: str, *, finished: bool = False) -> None:
        sequence = list(self.scheduler.waiting)[index]
        self.live.advance([SequenceUpdate(sequence, ord(letter), None, [], finished)], now=1.0)

    def outcome(self, reason: str) -> float | None:
        labels = {"model_name": "m", "reason": reason}
        return self.metrics.registry.get_sample_value("numaserve_request_outcomes_total", labels)


def request(prompt_tokens: int = 3) -> Request:
    return Request("id", [1] * prompt_tokens, SamplingParams(), 8)


async def test_chunks_of_several_sequences_come_in_one_stream_as_they_are_made() -> None:
    run = Run()
    stream = run.live.add([request(), request()], now=0.0)
    run.advance(1, "x")
    run.advance(0, "a")
    run.advance(1, "y", finished=True)
    run.advance(0, "b", finished=True)
    chunks = [chunk async for chunk in stream]
    assert [(chunk.index, chunk.text) for chunk in chunks] == [(1, "x"), (0, "a"), (1, "y"), (0, "b")]
    await stream.aclose()
    assert (run.room, run.outcome("length"), run.outcome("abort")) == (2, 2, 0)


def test_when_one_of_several_could_never_run_none_is_admitted() -> None:
    run = Run()
    with pytest.raises(RequestTooLong, match="64"):
        run.live.add([request(), request(), request(64)], now=0.0)
    assert len(run.live) == 0
    assert not run.scheduler.waiting


async def test_a_client_that_leaves_takes_all_its_sequences_with_it() -> None:
    run = Run()
    other = run.live.add([request()], now=0.0)
    stream = run.live.add([request(), request()], now=0.0)
    run.advance(1, "a", finished=True)
    await stream.aclose()
    assert (run.outcome("length"), run.outcome("abort")) == (1, 1)
    run.advance(0, "z", finished=True)
    assert [chunk.text async for chunk in other] == ["z"]


async def test_the_first_failure_ends_the_stream_behind_the_chunks_before_it() -> None:
    run = Run()
    stream = run.live.add([request(), request()], now=0.0)
    run.advance(1, "a")
    run.live.fail([next(iter(run.scheduler.waiting))], GenerationFailed("the first"))
    run.advance(0, "b")  # of the one that is left
    run.live.fail_all(GenerationFailed("the second"))
    assert (await anext(stream)).text == "a"
    with pytest.raises(GenerationFailed, match="the first"):
        await anext(stream)
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    await stream.aclose()
    assert (len(run.live), run.outcome("error"), run.outcome("abort")) == (0, 2, 0)


async def test_a_failure_of_one_leaves_the_others_to_the_consumer_to_close() -> None:
    run = Run()
    stream = run.live.add([request(), request()], now=0.0)
    run.live.fail([next(iter(run.scheduler.waiting))], GenerationFailed("the reason"))
    assert len(run.live) == 1
    with pytest.raises(GenerationFailed):
        await anext(stream)
    await stream.aclose()
    assert (len(run.live), run.outcome("error"), run.outcome("abort")) == (0, 1, 1)


@pytest.mark.parametrize("leaves", [False, True])
async def test_sequences_that_have_ended_are_gone_without_a_collection_of_garbage(leaves: bool) -> None:
    run = Run()
    stream = run.live.add([request()], now=0.0)
    run.advance(0, "x", finished=not leaves)
    await stream.aclose()
    ended = weakref.ref(stream)
    del stream
    assert ended() is None


@pytest.mark.parametrize("masked", [False, True])
async def test_a_new_field_of_a_request_reaches_the_sequence(masked: bool) -> None:
    @dataclass(frozen=True)
    class Extended(Request):
        flavour: str = ""

    def matcher() -> TokenMatcher:
        raise AssertionError

    run = Run()
    asked = Extended("id", [1, 2], SamplingParams(), 8, matcher=matcher if masked else None, flavour="x")
    stream = run.live.add([asked], now=0.0)
    (sequence,) = run.scheduler.waiting
    assert sequence.request == replace(asked, sampling=SamplingParams(masked=masked))
    await stream.aclose()


def test_a_sequence_restates_no_field_of_its_request() -> None:
    assert {each.name for each in fields(Sequence)} & {each.name for each in fields(Request)} == {"request_id"}


async def test_what_was_generated_elsewhere_comes_first_and_does_not_count_as_generated_here() -> None:
    run = Run()
    stream = run.live.add([replace(request(), generated=(ord("a"), ord("b")))], now=0.0)
    (sequence,) = run.scheduler.waiting
    assert (sequence.tokens, sequence.prompt_len) == ([1, 1, 1, ord("a"), ord("b")], 3)
    run.advance(0, "c", finished=True)
    chunks = [(chunk.text, chunk.token_ids, chunk.replayed) async for chunk in stream]
    assert chunks == [("a", [ord("a")], True), ("b", [ord("b")], True), ("c", [ord("c")], False)]
    lengths = run.metrics.registry.get_sample_value("numaserve_request_generation_tokens_sum", {"model_name": "m"})
    assert lengths == 1


async def test_a_sequence_that_had_ended_elsewhere_ends_at_once() -> None:
    run = Run()
    said = replace(request(), stop=("b",), generated=tuple(map(ord, "abc")))
    stream = run.live.add([said], now=0.0)
    assert not run.scheduler.waiting
    assert [(chunk.text, chunk.finish_reason) async for chunk in stream] == [("a", None), ("", "stop")]
    assert (len(run.live), run.room, run.outcome("stop")) == (0, 1, 1)
