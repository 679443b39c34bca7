"""From which length on ranks divide the latents of a sequence."""

import pytest
from numaserve.workers.program.caches import Heads
from numaserve.workers.program.context_parallel import context_parallel

LATENT, KEY = 512, 576
SLOT = 16 << 20


def heads(bounds: list[int]) -> Heads:
    return Heads(1, 1, KEY, LATENT, is_latent=True, bounds=tuple(bounds))


@pytest.mark.parametrize("bounds", [[0, 128], [0, 2, 2], [0, 0, 3], []])
def test_one_rank_or_ranks_without_heads_divide_nothing(bounds: list[int]) -> None:
    assert context_parallel(heads(bounds), SLOT, None) is None


def test_they_divide_from_where_latents_saved_are_more_than_what_is_exchanged() -> None:
    found = context_parallel(heads([0, 64, 128]), SLOT, None)
    assert found is not None
    queries, results = (64 + 128 + 128) * KEY * 2, (128 + 128) * (LATENT + 16) * 4
    saved = found.from_tokens * KEY  # half of the bytes
    assert saved > 2 * (queries + results) > saved - 2 * (1 << 20)
    assert found.heads == 128


def test_more_ranks_save_more_and_fewer_heads_exchange_less() -> None:
    def begin(bounds: list[int]) -> int:
        found = context_parallel(heads(bounds), SLOT, None)
        assert found is not None
        return found.from_tokens

    assert begin([0, 8, 16]) < begin([0, 64, 128])
    assert begin([0, 32, 64, 96, 128]) < begin([0, 64, 128])


def test_each_new_token_has_to_be_worth_its_exchange_and_the_ring_bounds_them_all() -> None:
    found = context_parallel(heads([0, 64, 128]), SLOT, 7)
    assert found is not None and found.from_tokens == 7
    assert [found.divides(start, 3, 0) for start in (17, 18)] == [False, True]
    assert [found.divides(100, 3, found.max_rows - room) for room in (3, 2)] == [True, False]
    assert found.max_rows * 128 * (LATENT + 32) * 4 <= SLOT < (found.max_rows + 1) * 128 * (LATENT + 32) * 4
