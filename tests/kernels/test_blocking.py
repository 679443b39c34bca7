"""How much of a product is done at a time: by the instruction set and the caches."""

import numaserve_kernel_tests as ops
import pytest
from kernel_ops import ONE_THREAD
from numaserve.workers.bench.programs import begin, built, make_builder

L2 = 2 << 20


# k tiles of a block by KiB of the first level.
OF_WEIGHTS_ALONE, OF_TILE_REGISTERS = {32: 8, 48: 12}, {32: 5, 48: 8}


def test_a_block_leaves_room_for_what_the_set_keeps_beside_it(isa: str) -> None:
    expected = OF_TILE_REGISTERS if isa.startswith("amx") else OF_WEIGHTS_ALONE
    assert {kib: ops.blocking(isa, kib << 10, L2)[2] for kib in expected} == expected


def test_groups_and_slabs_share_the_second_level(isa: str) -> None:
    assert [ops.blocking(isa, 32 << 10, kib << 10)[:2] for kib in (16, 1024, 2048, 1 << 20)] == [
        (2, 8),
        (64, 32),
        (128, 64),
        (128, 256),
    ]


def test_a_program_takes_another_blocking_and_refuses_one_without_room() -> None:
    b = make_builder(ONE_THREAD, hidden=64, step_tokens=1)
    begin(b, ONE_THREAD)
    program = built(b, ONE_THREAD)
    program.blocking = (2, 8, 4)
    assert program.blocking == (2, 8, 4)
    for blocking in ((3, 8, 4), (0, 8, 4), (130, 8, 4), (2, 7, 4), (2, 257, 4), (2, 8, 3), (2, 8, 33)):
        with pytest.raises(ValueError, match=r"panels of a group are even|k tiles of a slab are"):
            program.blocking = blocking
    assert program.blocking == (2, 8, 4)
