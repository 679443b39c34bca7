"""The record of the size limits, and its way to a worker."""

import msgspec
import pytest
from msgspec import structs
from numaserve.workers.interface.capacity import Capacity
from numaserve.workers.interface.protocol import Launch, ProtocolError, decode_to_worker, encode

CAPACITY = Capacity(
    num_pages=31,
    context_length=100,
    max_slots=4,
    max_step_tokens=48,
    max_logit_rows=9,
    num_snapshots=3,
    max_drafts=5,
    window_pages=(17, 19),
    feature_tiles=7,
)
LAUNCH = Launch(0, 1, "m", [[0]], [0], [1], CAPACITY, -1, 0, 5.0)


def test_a_launch_has_all_limits() -> None:
    told = decode_to_worker(encode(LAUNCH))
    assert isinstance(told, Launch)
    assert told.capacity == CAPACITY


@pytest.mark.parametrize("limit", Capacity.__struct_fields__)
def test_a_limit_that_nobody_decided_is_refused(limit: str) -> None:
    decided = {name: value for name, value in structs.asdict(CAPACITY).items() if name != limit}
    with pytest.raises(TypeError, match=f"Missing required argument '{limit}'"):
        Capacity(**decided)
    frame = encode(LAUNCH)
    fields = msgspec.msgpack.decode(frame[1:]) | {"capacity": decided}
    with pytest.raises(ProtocolError, match=f"missing required field `{limit}`"):
        decode_to_worker(frame[:1] + msgspec.msgpack.encode(fields))


def test_the_last_page_of_a_sequence_may_be_partial() -> None:
    lengths = {CAPACITY.context_length: 4, 96: 3, 97: 4, 1: 1}
    assert {each: structs.replace(CAPACITY, context_length=each).pages_per_slot for each in lengths} == lengths
