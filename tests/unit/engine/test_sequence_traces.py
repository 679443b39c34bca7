"""What a trace tells of a sequence, whatever way it ends."""

from dataclasses import replace
from typing import Any

from numaserve.server.engine.requests.live import LiveRequest
from numaserve.server.engine.requests.stream import Stream
from numaserve.server.engine.types import GenerationFailed
from numaserve.server.engine.views.traces import TRACE_PARENT, SequenceTrace
from numaserve.server.metrics.metrics import Metrics
from numaserve.server.scheduler.sequence import SequenceUpdate
from numaserve.workers.interface.protocol import SamplingParams

from tests.support.sequences import sequence


class Bytes:
    hidden_token_ids: frozenset[int] = frozenset()

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id])


class Run:
    def __init__(self) -> None:
        self.told: list[SequenceTrace] = []
        self.sequence = sequence("id", [1, 2], SamplingParams(), 2)
        tokenizer: Any = Bytes()
        self.live = LiveRequest(
            self.sequence,
            tokenizer,
            Metrics("m"),
            Stream(1, on_close=lambda: None),
            index=0,
            now=1.0,
            on_end=lambda _: None,
            trace=self.told.append,
        )

    def begin(self, now: float) -> None:
        self.sequence.cached_tokens, self.sequence.turn = 1, 0  # as the scheduler does when it begins
        self.live.scheduled(now)

    def feed(self, now: float, *, finished: bool = False) -> None:
        self.live.advance(SequenceUpdate(self.sequence, 65, None, [], finished), now)


WHOLE = SequenceTrace("id", "", 1.0, 2.0, 3.5, 4.0, 2, 1, 2, "length")


def test_a_sequence_is_told_once_with_its_times() -> None:
    run = Run()
    run.begin(2.0)
    run.feed(3.5)
    assert run.told == []
    run.feed(4.0, finished=True)
    run.live.abort(9.0)
    assert run.told == [WHOLE]


def test_what_it_did_not_come_to_has_no_time() -> None:
    waited, prefilled = Run(), Run()
    waited.live.abort(5.0)
    prefilled.begin(2.0)
    prefilled.live.fail(GenerationFailed("x"), 6.0)
    common = {"first_token": None, "output_tokens": 0}
    assert waited.told == [replace(WHOLE, scheduled=None, cached_tokens=0, ended=5.0, reason="abort", **common)]
    assert prefilled.told == [replace(WHOLE, ended=6.0, reason="error", **common)]


def test_it_knows_whose_part_it_is() -> None:
    token = TRACE_PARENT.set("a parent")
    try:
        run = Run()
    finally:
        TRACE_PARENT.reset(token)
    run.live.abort(2.0)
    assert run.told[0].parent == "a parent"
