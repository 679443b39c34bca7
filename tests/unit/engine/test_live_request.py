"""From updates of the scheduler to chunks, without workers."""

import asyncio
from typing import Any, cast

import pytest
from numaserve.server.engine.requests.live import LiveRequest
from numaserve.server.engine.requests.stream import Stream
from numaserve.server.engine.types import GenerationChunk, GenerationFailed
from numaserve.server.metrics.metrics import Metrics
from numaserve.server.scheduler.sequence import SequenceUpdate
from numaserve.server.tokenizer.types import TokenizerProtocol
from numaserve.workers.interface.protocol import SamplingParams

from tests.support.sequences import sequence

EOS = 256


class Bytes:
    """Token i is byte i."""

    vocab_size = 257
    eos_token_ids = frozenset({EOS})
    bos_token_id = None
    hidden_token_ids = frozenset({EOS})

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else b"</s>"


def _no_matcher() -> Any:
    raise AssertionError


class Run:
    def __init__(self, **fields: Any) -> None:
        self.metrics = Metrics("m")
        self.ends = 0
        self.sequence = sequence("id", [1], SamplingParams(), 1000, **fields)
        self.stream = Stream(1, on_close=lambda: self.live.abort(9.0))
        self.live = LiveRequest(
            self.sequence,
            cast(TokenizerProtocol, Bytes()),
            self.metrics,
            self.stream,
            index=0,
            now=0.0,
            on_end=self._on_end,
        )

    def _on_end(self, live: LiveRequest) -> None:
        self.ends += 1

    def feed(self, tokens: list[int] | bytes, *, finish: bool = False) -> None:
        for index, token in enumerate(tokens):
            last = finish and index == len(tokens) - 1
            self.live.advance(SequenceUpdate(self.sequence, token, None, [], last), 1.0 + index)
            if self.live.ended:
                return

    async def chunks(self) -> list[GenerationChunk]:
        return [chunk async for chunk in self.stream]

    def metric(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"numaserve_{name}", {"model_name": "m", **labels})

    def outcome(self, reason: str) -> float | None:
        return self.metric("request_outcomes_total", reason=reason)


def test_a_character_split_over_tokens_comes_when_it_is_whole() -> None:
    run = Run()
    run.feed("é€😀".encode(), finish=True)
    chunks = asyncio.run(run.chunks())
    assert [chunk.text for chunk in chunks] == ["", "é", "", "", "€", "", "", "", "😀"]


def test_logits_that_are_no_numbers_are_an_error_that_is_counted() -> None:
    run = Run()
    run.feed(b"ab")
    run.live.advance(SequenceUpdate(run.sequence, None, None, [], finished=True, nan=True), 5.0)
    with pytest.raises(GenerationFailed, match="not numbers"):
        asyncio.run(run.chunks())
    assert (run.ends, run.outcome("error")) == (1, 1)
    assert run.metric("nan_logits_total") == 1


def test_half_a_character_at_the_length_limit_is_not_lost() -> None:
    run = Run()
    run.feed("a€".encode()[:2], finish=True)
    chunks = asyncio.run(run.chunks())
    assert ("".join(chunk.text for chunk in chunks), chunks[-1].finish_reason) == ("a\ufffd", "length")


def test_what_was_held_back_for_a_stop_string_comes_at_the_end() -> None:
    run = Run(stop=("END!",))
    run.feed(b"the END", finish=True)
    chunks = asyncio.run(run.chunks())
    assert ("".join(chunk.text for chunk in chunks), chunks[-1].finish_reason) == ("the END", "length")


def test_a_stop_string_wins_over_the_length_limit() -> None:
    run = Run(stop=("END",))
    run.feed(b"the END", finish=True)
    chunks = asyncio.run(run.chunks())
    assert "".join(chunk.text for chunk in chunks) == "the "
    assert (chunks[-1].finish_reason, chunks[-1].stop_reason) == ("stop", "END")


def test_a_stop_token_lets_out_what_was_held_back_and_counts_as_a_token() -> None:
    run = Run(stop=("END!",), stop_token_ids=frozenset({EOS}))
    run.feed([*b"the END", EOS])
    chunks = asyncio.run(run.chunks())
    assert "".join(chunk.text for chunk in chunks) == "the END"
    assert (chunks[-1].token_ids, chunks[-1].finish_reason, chunks[-1].stop_reason) == ([EOS], "stop", EOS)


async def test_a_constraint_that_allows_only_the_end_wins_over_the_least_number_of_tokens() -> None:
    run = Run(stop_token_ids=frozenset({EOS}), min_new_tokens=4, matcher=_no_matcher)
    run.feed([*b"a", EOS])
    assert [chunk.finish_reason for chunk in await run.chunks()] == [None, "stop"]


def test_before_the_minimum_neither_strings_nor_tokens_stop() -> None:
    run = Run(stop=("b",), stop_token_ids=frozenset({EOS}), min_new_tokens=4)
    run.feed([*b"ab", EOS, *b"cdb"])
    chunks = asyncio.run(run.chunks())
    assert ("".join(chunk.text for chunk in chunks), chunks[-1].stop_reason) == ("abcd", "b")


@pytest.mark.parametrize("again", ["abort", "fail", "close"])
def test_a_request_ends_only_once(again: str) -> None:
    run = Run()
    run.feed(b"x", finish=True)
    if again == "abort":
        run.live.abort(2.0)
    elif again == "fail":
        run.live.fail(GenerationFailed("too late"), 2.0)
    else:
        asyncio.run(run.stream.aclose())
    assert (run.ends, run.outcome("length"), run.outcome("abort"), run.outcome("error")) == (1, 1, 0, 0)


async def test_a_failure_comes_after_the_chunks_before_it_and_once() -> None:
    run = Run()
    run.feed(b"ab")
    run.live.fail(GenerationFailed("the reason"), 3.0)
    texts = [(await anext(run.stream)).text for _ in range(2)]
    assert texts == ["a", "b"]
    with pytest.raises(GenerationFailed, match="the reason"):
        await anext(run.stream)
    with pytest.raises(StopAsyncIteration):
        await anext(run.stream)
    assert (run.ends, run.outcome("error")) == (1, 1)


async def test_closing_wakes_a_consumer_that_waits() -> None:
    run = Run()
    waiting = asyncio.create_task(run.chunks())
    await asyncio.sleep(0)
    await run.stream.aclose()
    assert await waiting == []
    assert (run.ends, run.outcome("abort")) == (1, 1)


def test_latencies_are_counted_from_admission_and_between_tokens() -> None:
    run = Run()
    run.feed(b"abc", finish=True)  # at 1, 2 and 3 seconds after admission
    assert run.metric("time_to_first_token_seconds_sum") == 1.0
    assert run.metric("inter_token_latency_seconds_sum") == 2.0
    assert run.metric("e2e_request_latency_seconds_sum") == 3.0


def test_prefill_is_counted_from_the_first_step_and_decode_from_the_first_token_to_the_end() -> None:
    run = Run()
    run.live.scheduled(0.25)
    run.feed(b"abcd", finish=True)
    assert run.metric("queue_time_seconds_sum") == 0.25
    assert run.metric("prefill_time_seconds_sum") == 0.75
    assert run.metric("decode_time_seconds_sum") == 3.0
    assert run.metric("request_prompt_tokens_sum") == 1.0
    assert run.metric("request_generation_tokens_sum") == 4.0


def test_a_sequence_without_output_has_no_length_of_it() -> None:
    run = Run()
    run.live.abort(1.0)
    assert run.metric("request_generation_tokens_count") == run.metric("decode_time_seconds_count") == 0


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"stop": ("yz",)}, "x"),
        ({"stop": ("yz",), "include_stop": True}, "xyz"),
        ({"stop_token_ids": frozenset({ord("y")})}, "x"),
        ({"stop_token_ids": frozenset({ord("y")}), "include_stop": True}, "xy"),
        ({"stop_token_ids": frozenset({ord("z")}), "stop": ("yq",), "include_stop": True}, "xyz"),
        ({"stop_token_ids": frozenset({EOS}), "include_stop": True}, "xyzw"),
    ],
)
def test_what_ends_an_answer_is_a_part_of_it_where_that_is_asked_for(fields: dict[str, Any], text: str) -> None:
    run = Run(**fields)
    run.feed([*b"xyzw", EOS])
    chunks = asyncio.run(run.chunks())
    assert "".join(chunk.text for chunk in chunks) == text
    assert chunks[-1].finish_reason == "stop"
