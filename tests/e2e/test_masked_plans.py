"""Plans with masked rows, before real workers: a board on which something, nothing or garbage is written."""

import ctypes
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from numaserve.server.scheduler.matcher import MaskState
from numaserve.workers.interface.protocol import SamplingParams, SeqPlan, SlotInit, StepPlan

from tests.support.rank_group import RankGroup
from tests.support.same_bits import save_tiny_model

GREEDY = SamplingParams(temperature=0.0)
MASKED = SamplingParams(temperature=0.0, masked=True)
FREE_SLOT, MASKED_SLOT, OTHER_SLOT = 0, 1, 2
FIRST_ROW = 4096


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model("llama", tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def group(tp: int, model: Path) -> Iterator[RankGroup]:
    with RankGroup(model, tp, threads=2, mask_grace_s=0.4) as made:
        yield made


def begin(slot: int, sampling: SamplingParams) -> SeqPlan:
    return SeqPlan(slot, 0, [5, 6, 7 + slot], pages=[slot], init=SlotInit(sampling), sample=True)


def plan(step_id: int, *slots: int) -> StepPlan:
    return StepPlan(step_id, [begin(slot, GREEDY if slot == FREE_SLOT else MASKED) for slot in slots])


def more(step_id: int, *slots: int) -> StepPlan:
    return StepPlan(step_id, [SeqPlan(slot, 3, [], from_previous=True, sample=True) for slot in slots])


def allow(group: RankGroup, step_id: int, slot: int, *tokens: int) -> None:
    assert group.board is not None
    memory = ctypes.create_string_buffer(group.board.row_bytes)
    bits = sum(1 << token for token in tokens)
    ctypes.memmove(memory, bits.to_bytes(group.board.row_bytes, "little"), group.board.row_bytes)
    group.board.publish(step_id, slot, MaskState.MASK, ctypes.addressof(memory))


def test_a_row_has_a_token_that_its_mask_allows(group: RankGroup) -> None:
    alone = group.run(plan(0, FREE_SLOT)).seqs[0]
    for step_id, token in ((1, 3), (2, 400), (3, 77)):
        allow(group, step_id, MASKED_SLOT, token)
        free, masked = group.run(plan(step_id, FREE_SLOT, MASKED_SLOT)).seqs
        assert free == alone
        assert (masked.token, masked.dropped) == (token, False)


def test_nobody_who_writes_costs_the_row_and_nothing_else(group: RankGroup) -> None:
    alone = group.run(plan(10, FREE_SLOT)).seqs[0]
    allow(group, 11, OTHER_SLOT, 9)
    result = group.run(plan(11, FREE_SLOT, MASKED_SLOT, OTHER_SLOT))
    free, late, other = result.seqs
    assert free == alone
    assert (late.late, late.dropped) == (True, False)
    assert (other.token, other.dropped, other.late) == (9, False, False)
    assert result.mask_wait_ns >= 0.4e9
    allow(group, 12, MASKED_SLOT, 4)
    allow(group, 12, OTHER_SLOT, 8)
    result = group.run(more(12, FREE_SLOT, MASKED_SLOT, OTHER_SLOT))  # the late slot goes on from some token
    assert [each.token for each in result.seqs[1:]] == [4, 8]
    assert not any(each.dropped or each.late for each in result.seqs)


def test_all_rows_of_a_step_wait_together_no_longer_than_the_deadline(group: RankGroup) -> None:
    slots = range(MASKED_SLOT, 12)
    result = group.run(plan(20, *slots))
    assert all(each.late for each in result.seqs)
    assert result.mask_wait_ns < len(slots) / 2 * 0.4e9  # what the two threads would wait for one after the other


@pytest.mark.parametrize("state", [MaskState.DROP, MaskState.FREE])
def test_a_word_without_bits_is_obeyed_at_once(group: RankGroup, state: MaskState) -> None:
    assert group.board is not None
    group.board.publish(30, MASKED_SLOT, state)
    result = group.run(plan(30, FREE_SLOT, MASKED_SLOT))
    _, masked = result.seqs
    assert masked.dropped == (state is MaskState.DROP)
    assert result.mask_wait_ns == 0


def test_a_mask_that_allows_nothing_drops_the_row(group: RankGroup) -> None:
    allow(group, 40, MASKED_SLOT)
    free, masked = group.run(plan(40, FREE_SLOT, MASKED_SLOT)).seqs
    assert masked.dropped
    assert not free.dropped


def test_garbage_on_the_board_harms_nobody_but_its_row(group: RankGroup) -> None:
    assert group.board is not None
    alone = group.run(plan(50, FREE_SLOT)).seqs[0]
    size = os.fstat(group.board.fd).st_size - FIRST_ROW
    for step_id, filling in ((51, b"\xff"), (52, b"\x00"), (53, b"\x5a")):
        os.pwrite(group.board.fd, filling * size, FIRST_ROW)
        free, masked = group.run(plan(step_id, FREE_SLOT, MASKED_SLOT)).seqs
        assert free == alone
        assert masked.dropped or masked.late
    allow(group, 54, MASKED_SLOT, 12)
    word = struct.unpack("=Q", os.pread(group.board.fd, 8, FIRST_ROW))[0]
    assert word & 0xFF == 0x5A  # the row of another slot is as it was
    assert group.run(plan(54, MASKED_SLOT)).seqs[0].token == 12


def test_named_tokens_have_their_log_probabilities(group: RankGroup) -> None:
    sampling = SamplingParams(temperature=0.0, logprobs=5, token_ids_logprob=[9, 3])
    result = group.run(StepPlan(60, [begin(FREE_SLOT, sampling)])).seqs[0]
    assert result.logprobs is not None
    named = SamplingParams(temperature=0.0, logprobs=5, token_ids_logprob=[*result.logprobs.top_ids])
    again = group.run(StepPlan(61, [begin(FREE_SLOT, named)])).seqs[0]
    assert again.token_logprobs == result.logprobs.top_logprobs
    assert len(result.token_logprobs) == 2


def test_a_named_token_that_there_is_not_is_refused(group: RankGroup) -> None:
    group.send(StepPlan(70, [begin(FREE_SLOT, SamplingParams(token_ids_logprob=[1 << 20]))]))
    assert all("is not in the vocabulary" in failure.message for failure in group.receive_failures())


@pytest.mark.parametrize("tp", [1, 2])
def test_workers_whose_front_end_dies_while_they_wait_for_its_mask_end_too(model: Path, tp: int) -> None:
    with RankGroup(model, tp, mask_grace_s=0.4) as orphaned:
        orphaned.send(plan(0, FREE_SLOT, MASKED_SLOT))
        assert orphaned.orphan() == [1] * tp
        assert orphaned.left_behind() == []


@pytest.mark.parametrize("tp", [1, 2])
def test_every_rank_refuses_a_masked_sequence_where_there_is_no_board(model: Path, tp: int) -> None:
    with RankGroup(model, tp) as without:
        without.send(plan(0, MASKED_SLOT))
        failures = without.receive_failures()
        assert [failure.rank for failure in failures] == list(range(tp))
        assert all("receives no token masks" in failure.message for failure in failures)
        assert not without.run(plan(1, FREE_SLOT)).seqs[0].dropped
