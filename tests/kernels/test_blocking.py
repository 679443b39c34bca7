"""How much of a product is done at a time: by the instruction set and the caches."""

import kernel_ops
import kernel_reference as reference
import numaserve_kernel_tests as ops
import numpy as np
import pytest
from kernel_ops import ONE_THREAD
from numaserve.workers.bench.programs import begin, built, make_builder

L2 = 2 << 20


# k tiles of a block by KiB of the first level.
OF_WEIGHTS_ALONE, OF_TILE_REGISTERS, OF_COPIED_TILES = {32: 8, 48: 12}, {32: 5, 48: 8}, {32: 7, 48: 13}


def test_a_block_leaves_room_for_what_the_set_keeps_beside_it(isa: str) -> None:
    expected = OF_TILE_REGISTERS if isa.startswith("amx") else OF_WEIGHTS_ALONE
    assert {kib: ops.blocking(isa, kib << 10, L2)[2] for kib in expected} == expected
    if isa.startswith("amx"):
        assert {kib: ops.blocking(isa, kib << 10, L2)[5] for kib in OF_COPIED_TILES} == OF_COPIED_TILES


def test_what_a_sweep_has_found_stands_for_its_family_and_set_alone(isa: str) -> None:
    caches, by_caches = (32 << 10, 1 << 20), ops.blocking(isa, 32 << 10, 1 << 20)
    copied = (OF_COPIED_TILES[32] if isa.startswith("amx") else 4, 512 << 10, 256, 12)
    assert by_caches[3:] == (by_caches[2] // 2, 36, *copied)
    assert ops.blocking(isa, *caches, "AuthenticAMD", 26) == ops.blocking(isa, *caches, "GenuineIntel", 25) == by_caches
    xeon = ops.blocking(isa, *caches, "GenuineIntel", 6)
    assert xeon == (*by_caches[:2], *((8, 4, 64, *copied[:2], 512, 12) if isa == "amx" else by_caches[2:]))
    zen4 = ops.blocking(isa, *caches, "AuthenticAMD", 25)
    assert zen4 == (*by_caches[:2], *((32, 4, 16, *copied) if isa == "avx512" else by_caches[2:]))


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
    few, copied = (2, 16), (4, 0, 64, 3)
    program.blocking = (2, 8, 4, *few, *copied)
    assert program.blocking == (2, 8, 4, *few, *copied)
    for blocking in ((3, 8, 4), (0, 8, 4), (130, 8, 4), (2, 7, 4), (2, 257, 4), (2, 8, 3), (2, 8, 33)):
        with pytest.raises(ValueError, match=r"an even number of panels|8 to 256 k tiles"):
            program.blocking = (*blocking, *few, *copied)
    for rows in ((1, 16), (33, 16), (2, -1), (2, 257)):
        with pytest.raises(ValueError, match=r"a small batch must have at most 256 rows"):
            program.blocking = (2, 8, 4, *rows, *copied)
    for tiles in (3, 33):
        with pytest.raises(ValueError, match=r"for copied activations must have 4 to 32 k tiles"):
            program.blocking = (2, 8, 4, *few, tiles, 0, 256, 0)
    with pytest.raises(ValueError, match=r"that are not streamed must not be negative"):
        program.blocking = (2, 8, 4, *few, 4, -1, 256, 0)
    with pytest.raises(ValueError, match=r"that are copied for must not be negative"):
        program.blocking = (2, 8, 4, *few, 4, 0, 256, -1)
    for rows in (0, 48, 544):
        with pytest.raises(ValueError, match=r"whole groups of 32 rows, 32 to 512 rows"):
            program.blocking = (2, 8, 4, *few, 4, 0, rows, 0)
    assert program.blocking == (2, 8, 4, *few, *copied)


# A row of 1024 columns of bf16 is 2 KiB: the amx set copies tiles of such rows.
@pytest.mark.parametrize("weights", ["bf16", "int8"])
@pytest.mark.parametrize("k", [1024, 2048, 1000])
def test_slabs_and_copied_activations_change_no_bit(isa: str, rng: np.random.Generator, weights: str, k: int) -> None:
    a, b = (reference.to_bf16(rng.standard_normal((n, k))) for n in (81, 96))
    weight = kernel_ops.packed(b, weights=weights)
    expected = np.concatenate([kernel_ops.multiply(isa, a[m : m + 1], weight) for m in range(len(a))])
    for caches in (kernel_ops.CACHES, (8 << 10, 256 << 10, 0)):  # of these several slabs, and blocks of a slab
        for m in (16, 31, 33, 47, 64, 81):
            np.testing.assert_array_equal(kernel_ops.multiply(isa, a[:m], weight, caches=caches), expected[:m])
