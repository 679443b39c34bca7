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
    assert {kib: ops.blocking(isa, kib << 10, L2)["block_tiles"] for kib in expected} == expected
    if isa.startswith("amx"):
        assert {kib: ops.blocking(isa, kib << 10, L2)["copied_tiles"] for kib in OF_COPIED_TILES} == OF_COPIED_TILES


def test_what_a_sweep_has_found_stands_for_its_family_and_set_alone(isa: str) -> None:
    caches, by_caches = (32 << 10, 1 << 20), ops.blocking(isa, 32 << 10, 1 << 20)
    copied = {"copied_tiles": OF_COPIED_TILES[32] if isa.startswith("amx") else 4, "streamed_bytes": 512 << 10}
    copied |= {"row_block": 256, "least_copied_pairs": 12}
    few = {"few_tiles": by_caches["block_tiles"] // 2, "few_rows": 36}
    assert by_caches == by_caches | few | copied
    assert ops.blocking(isa, *caches, "AuthenticAMD", 26) == ops.blocking(isa, *caches, "GenuineIntel", 25) == by_caches
    xeon = ops.blocking(isa, *caches, "GenuineIntel", 6)
    found = {"block_tiles": 8, "few_tiles": 4, "few_rows": 64, "row_block": 512} if isa == "amx" else {}
    assert xeon == by_caches | found
    zen4 = ops.blocking(isa, *caches, "AuthenticAMD", 25)
    found = {"block_tiles": 32, "few_tiles": 4, "few_rows": 16} if isa == "avx512" else {}
    assert zen4 == by_caches | found


def test_groups_and_slabs_share_the_second_level(isa: str) -> None:
    found = [ops.blocking(isa, 32 << 10, kib << 10) for kib in (16, 1024, 2048, 1 << 20)]
    assert [(each["group_panels"], each["slab_tiles"]) for each in found] == [
        (2, 8),
        (64, 32),
        (128, 64),
        (128, 256),
    ]


LEAST = {"group_panels": 2, "slab_tiles": 8, "block_tiles": 4, "few_tiles": 2, "few_rows": 16}
LEAST |= {"copied_tiles": 4, "streamed_bytes": 0, "row_block": 32, "least_copied_pairs": 0}
REFUSED = {
    "an even number of panels": {"group_panels": (3, 0, 130)},
    "8 to 256 k tiles": {"slab_tiles": (7, 257), "block_tiles": (3, 33)},
    "a small batch must have at most 256 rows": {"few_tiles": (1, 33), "few_rows": (-1, 257)},
    "for copied activations must have 4 to 32 k tiles": {"copied_tiles": (3, 33)},
    "that are not streamed must not be negative": {"streamed_bytes": (-1,)},
    "that are copied for must not be negative": {"least_copied_pairs": (-1,)},
    "whole groups of 32 rows, 32 to 512 rows": {"row_block": (0, 48, 544)},
}


def test_a_program_takes_another_blocking_and_refuses_one_without_room() -> None:
    b = make_builder(ONE_THREAD, hidden=64, step_tokens=1)
    begin(b, ONE_THREAD)
    program = built(b, ONE_THREAD)
    program.blocking = LEAST
    assert program.blocking == LEAST
    for message, sizes in REFUSED.items():
        for name, values in sizes.items():
            for value in values:
                with pytest.raises(ValueError, match=message):
                    program.blocking = LEAST | {name: value}
    few = {name: size for name, size in LEAST.items() if name != "few_rows"}
    for names in (few, few | {"rows": 16}, LEAST | {"rows": 16}):
        with pytest.raises(ValueError, match=r"expected a size for each of group_panels, slab_tiles, "):
            program.blocking = names
    assert program.blocking == LEAST


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
