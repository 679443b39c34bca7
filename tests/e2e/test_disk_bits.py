"""Promise: a prefix that was written to disk and read to other memory continues with the same bits."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from numaserve.workers.interface.protocol import (
    PAGE_SIZE,
    TO_BE_DRAFTED,
    DiskRecord,
    DraftWork,
    ReadRecords,
    SeqPlan,
    SeqResult,
    SlotInit,
    StateWork,
    StepPlan,
    WindowWork,
    WriteRecords,
)
from numaserve.workers.kv_disk.records import record_bytes

from tests.support.predicting import START, save_twin
from tests.support.rank_group import RankGroup
from tests.support.same_bits import GREEDY, save_tiny_model

_DEPTH = 12  # pages of the prefix: more than a window and a block
_PREFIX = _DEPTH * PAGE_SIZE
NUM_PAGES = 64
_ANSWER = 6  # steps
_TOKENS = [START, *random.Random(0).choices(range(96), k=_PREFIX + 9)]
_FIRST_WINDOW_PAGE = 8  # of the page table, which a window of 100 tokens needs


@dataclass(frozen=True)
class Case:
    """A model, what its group is made with, and what its sequences have besides pages."""

    save: Callable[[Path], Path]
    settings: dict[str, Any] = field(default_factory=dict)
    drafts: int = 0

    @property
    def anchored(self) -> bool:
        return bool({"num_snapshots", "window_pages"} & self.settings.keys())


def tiny(name: str, **settings: object) -> Case:
    return Case(lambda folder: save_tiny_model(name, folder), settings)


CASES = {
    "heads": tiny("llama"),
    "heads in int8": tiny("qwen3", kv_cache_dtype="int8"),
    "heads in fp8": tiny("qwen3", kv_cache_dtype="fp8_e4m3"),
    "latents": tiny("deepseek_v3"),
    "windows": tiny("gpt_oss", window_pages=[64]),
    "states": tiny("qwen3_next", num_snapshots=2),
    "states of the reference": tiny("qwen3_next", num_snapshots=2, backend="reference"),
    "predictor": Case(lambda folder: save_twin("deepseek_v3", folder), {"mtp": True}, drafts=1),
    "draft model": Case(lambda folder: save_tiny_model("llama", folder), drafts=2),
}


@dataclass(frozen=True)
class Memory:
    """Where a sequence's prefix is."""

    slot: int
    pages: list[int]
    snapshot: int
    tail: list[int]

    def records(self, case: Case) -> list[DiskRecord]:
        """The records of all pages, and of the anchor after them."""
        pages = [DiskRecord(n, digest(n), page=page) for n, page in enumerate(self.pages)]
        if not case.anchored:
            return pages
        tails = [self.tail] if "window_pages" in case.settings else []
        snapshot = self.snapshot if "num_snapshots" in case.settings else -1
        return [*pages, DiskRecord(0, digest(_DEPTH - 1), snapshot=snapshot, tails=tails)]


FIRST = Memory(0, list(range(_DEPTH)), 0, list(range(_FIRST_WINDOW_PAGE, _DEPTH)))
SECOND = Memory(1, list(range(30, 30 + _DEPTH))[::-1], 1, [40, 33, 37, 20])


def digest(number: int) -> bytes:
    return hashlib.sha256(b"%d" % number).digest()


class Sequence:
    """A sequence in a group, from its first or from another position on."""

    def __init__(self, group: RankGroup, case: Case, memory: Memory) -> None:
        self._group, self._case, self._memory, self._steps = group, case, memory, 0

    def prefill(self) -> None:
        """Compute the prefix, into memory."""
        memory = self._memory
        window_pages = [*range(_FIRST_WINDOW_PAGE), *memory.tail]
        self._run(
            SeqPlan(memory.slot, 0, _TOKENS[:_PREFIX], pages=memory.pages, init=SlotInit(GREEDY)),
            StateWork(0, marks=[(_PREFIX, memory.snapshot)]),
            WindowWork(0, 0, 0, window_pages),
        )

    def resume(self) -> list[SeqResult]:
        """Continue after the prefix in memory: the results of all steps."""
        memory = self._memory
        more = 62  # a page
        seq = SeqPlan(
            memory.slot, _PREFIX, _TOKENS[_PREFIX:], pages=[*memory.pages, more], init=SlotInit(GREEDY), sample=True
        )
        window = WindowWork(0, 0, _FIRST_WINDOW_PAGE, [*memory.tail, more])
        results = [self._run(seq, StateWork(0, memory.snapshot), window)]
        position = len(_TOKENS)
        for _ in range(_ANSWER):
            tokens = [results[-1].token, *(each.token for each in results[-1].following)]
            drafts = self._case.drafts
            last = SeqPlan(
                memory.slot, position + len(tokens) - 1, [tokens[-1], *[TO_BE_DRAFTED] * drafts], sample=True
            )
            results.append(self._run(last, lacking=tokens[:-1], drafts=drafts))
            position += len(tokens)
        return results

    def _run(
        self,
        seq: SeqPlan,
        states: StateWork | None = None,
        window: WindowWork | None = None,
        *,
        lacking: list[int] | None = None,
        drafts: int = 0,
    ) -> SeqResult:
        more: dict[str, Any] = {}
        if states is not None and "num_snapshots" in self._case.settings:
            more["states"] = [states]
        if window is not None and "window_pages" in self._case.settings:
            more["windows"] = [window]
        if self._case.drafts:
            more |= {"drafts": [drafts], "draft_work": [DraftWork(0, lacking or [])]}
        self._steps += 1
        (result,) = self._group.run(StepPlan(self._steps, [seq], **more)).seqs
        return result


@pytest.mark.parametrize("name", CASES)
def test_a_prefix_read_from_disk_continues_with_the_same_bits(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    model, folder = case.save(tmp_path / "model"), tmp_path / "disk"
    folder.mkdir()
    more = {"draft_model": model} if name == "draft model" else {}
    with RankGroup(model, 1, disk_folder=folder, num_pages=NUM_PAGES, max_slots=2, **case.settings, **more) as group:
        (ready,) = group.disk_ready()
        assert (ready.problem, ready.anchor_bytes > 0) == ("", case.anchored)
        if "window_pages" not in case.settings:
            # All that planning knows of a page is in its record.
            assert ready.page_bytes == record_bytes(group.ready[0].kv_bytes // NUM_PAGES)
        Sequence(group, case, FIRST).prefill()
        expected = Sequence(group, case, FIRST).resume()
        (written,) = group.move(WriteRecords(1, FIRST.records(case)))
        assert (written.done, written.problem) == (len(FIRST.records(case)), "")
        # Memory that holds nothing continues otherwise, so that a record which restored nothing would be seen.
        assert Sequence(group, case, SECOND).resume() != expected
        (read,) = group.move(ReadRecords(2, SECOND.records(case)))
        assert (read.done, read.problem) == (written.done, "")
        assert Sequence(group, case, SECOND).resume() == expected
        if case.drafts:
            assert all(len(each.following) == case.drafts for each in expected[2:])
