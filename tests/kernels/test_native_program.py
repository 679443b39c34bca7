"""Recorded operations as native nodes."""

import pytest
from numaserve.kernels import Program, Team
from numaserve.workers.interface.capacity import Capacity
from numaserve.workers.program.buffers import Tensor
from numaserve.workers.program.caches import CacheKind, Heads
from numaserve.workers.program.native import make_program
from numaserve.workers.program.ops.latent import GatherColumns
from numaserve.workers.program.recording.recorder import Recorder
from numaserve.workers.program.setup import ProgramSetup, Ranks, RankShape

SHAPE = RankShape(64, [0, 16], (CacheKind(Heads(1, 1, 32)),))


class Ring:
    """A ring whose messages are small."""

    slot_bytes = 4095


@pytest.mark.parametrize("pages", [1, 7, 8, 9, 128, 4097])
def test_the_room_for_partial_attention_is_what_native_code_counts_with(pages: int) -> None:
    recorder = Recorder(ProgramSetup(SHAPE, Capacity.of_program(32, 16, 1, pages, pages), Ranks((1,))))
    assert recorder._attention_partial(32).rows == Program.partial_rows(pages)


def test_a_collective_that_does_not_fit_the_ring_is_refused() -> None:
    setup = ProgramSetup(SHAPE, Capacity.of_program(32, 16, 1, 1, 1), Ranks((1, 1), 0, Ring.slot_bytes))
    part = Tensor(32, 32, 4, collective=True)
    gathered = GatherColumns(message=part, out=Tensor(32, 64, 4), bounds=(0, 32, 64))
    embed = GatherColumns(message=Tensor(32, 32, 4), out=part, bounds=(0, 32, 64))
    with pytest.raises(
        ValueError, match="a message of 4096 bytes to other ranks does not fit in a ring slot of 4095 bytes"
    ):
        make_program(setup, [embed, gathered], Team([-1]), Ring())  # type: ignore[arg-type]
