"""LoRA adapters: the time of steps with adapters, as a part of the time of the same steps without.

python -m tests.bench.bench_lora [--rank 16] [--rounds 30] [--streams 16] [--folder FOLDER]

The model has Llama-3.2-1B's shape and random weights. The steps of all cases take turns, so that whatever else the
machine does is the same for all. A last row compares a model without memory for adapters with one that has some and
uses none.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import transformers as hf
from numaserve.workers.bench.shapes import SHAPES
from numaserve.workers.interface.protocol import PAGE_SIZE, SamplingParams, SeqPlan, SlotInit, StepPlan

from tests.support.lora import random_adapter
from tests.support.rank_group import RankGroup

_CONTEXT, _PROMPT, _LONG = 1024, 64, 512
_LOADS, _STEPS_OF_LOAD = 5, 12
_GREEDY = SamplingParams(temperature=0.0)
_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")


@dataclass(frozen=True)
class Case:
    """Streams that decode together: the numbers of their adapters."""

    name: str
    adapters: Sequence[int]


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--folder", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lora-") as made:
        folder = asked.folder or Path(made)
        base, adapters = write(folder, asked.rank, asked.streams)
        bench(base, adapters, asked.rank, asked.streams, asked.rounds)


def write(folder: Path, rank: int, streams: int) -> tuple[Path, list[Path]]:
    """Write the model, an adapter of all linear modules for each stream, and as many of attention alone."""
    base = folder / "base"
    names = [*(f"all-{each}" for each in range(streams)), *(f"attention-{each}" for each in range(streams))]
    if not base.exists():
        torch.manual_seed(0)
        config = hf.LlamaConfig.from_dict(SHAPES["llama-1b"].config())
        model = hf.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        model.save_pretrained(base)
        for name in names:
            some = name.startswith("attention")
            random_adapter(
                model,
                rank=rank,
                seed=names.index(name),
                wanted=lambda each, some=some: not some or each.endswith(_ATTENTION),
            ).save(folder / name, dtype=torch.bfloat16)
    return base, [folder / name for name in names]


def bench(base: Path, adapters: list[Path], rank: int, streams: int, rounds: int) -> None:
    """Measure decode steps of all cases, and prompts."""
    every = range(1, streams + 1)
    cases = [
        Case("1 stream", [0]),
        Case("1 stream, 1 adapter", [1]),
        Case(f"{streams} streams", [0] * streams),
        Case(f"{streams} streams, 1 adapter", [1] * streams),
        Case(f"{streams} streams, {streams} adapters", every),
        Case(f"{streams} streams, {streams} adapters of attention", [streams + each for each in every]),
    ]
    slots = sum(len(case.adapters) for case in cases) + 1
    pages = _CONTEXT // PAGE_SIZE
    options = {
        "threads": 2,
        "cpus": [[0, 1]],
        "num_pages": slots * pages,
        "context_length": _CONTEXT,
        "max_slots": slots,
        "max_step_tokens": _LONG,
        "max_logit_rows": 64,
    }
    with RankGroup(base, 1, adapters=adapters, max_lora_rank=rank, **options) as group:
        times = _Steps(group, pages).decode(cases, rounds)
        for with_adapters, without in ((1, 0), (3, 2), (4, 2), (5, 2)):
            _print(cases[with_adapters].name, times[with_adapters], times[without])
        prompts = _Steps(group, pages).prompts([0, 1, streams + 1], slots - 1, max(3, rounds // 4))
        _print(f"a prompt of {_LONG}", prompts[1], prompts[0])
        _print(f"a prompt of {_LONG}, attention", prompts[2], prompts[0])
        _loads(group, adapters, pages)
        with RankGroup(base, 1, **options) as plain:
            both = [_Steps(each, pages) for each in (group, plain)]
            for steps in both:
                steps.begin([cases[0]])
            turns = [[steps.step([0]) for steps in both] for _ in range(3 * rounds)]
            _print("1 stream, memory for adapters, none used", *([row[index] for row in turns] for index in (0, 1)))


def _loads(group: RankGroup, adapters: list[Path], pages: int) -> None:
    """Print the longest of some steps of eight streams, alone and while an adapter is loaded."""
    streams, steps = Case("8 streams", [1] * 8), _Steps(group, pages)
    (slots,) = steps.begin([streams])
    adapter = group.described(len(adapters), adapters[-1])
    for name, loads in (("alone", False), ("while an adapter is loaded", True)):
        longest = []
        for _ in range(_LOADS):
            if loads:
                group.begin_load(adapter)
            times = []
            for _ in range(_STEPS_OF_LOAD):
                begin = time.perf_counter()
                steps.step(slots)
                times.append(1e3 * (time.perf_counter() - begin))
            longest.append(max(times))
        print(f"longest step of 8 streams {name:25} {statistics.median(longest):.0f} ms, at most {max(longest):.0f} ms")


class _Steps:
    """Steps of a group, with pages of its own for each slot."""

    def __init__(self, group: RankGroup, pages: int) -> None:
        self._group, self._pages = group, pages
        self._lengths: dict[int, int] = {}
        self._step = 0
        self._random = np.random.default_rng(0)

    def begin(self, cases: Sequence[Case]) -> list[list[int]]:
        """Compute a prompt of each stream of all cases; their slots."""
        found, slot = [], 0
        for case in cases:
            found.append(list(range(slot, slot + len(case.adapters))))
            for adapter in case.adapters:
                self._prompt(slot, adapter, _PROMPT)
                slot += 1
        return found

    def decode(self, cases: Sequence[Case], rounds: int) -> list[list[int]]:
        """The nanoseconds of a step of each case, in turn."""
        slots = self.begin(cases)
        times: list[list[int]] = [[] for _ in cases]
        for _ in range(rounds):
            for index, own in enumerate(slots):
                times[index].append(self.step(own))
        return times

    def prompts(self, adapters: Sequence[int], slot: int, rounds: int) -> list[list[int]]:
        """The nanoseconds of a prompt with each adapter, in turn."""
        turns = [[self._prompt(slot, adapter, _LONG) for adapter in adapters] for _ in range(rounds)]
        return [list(each) for each in zip(*turns, strict=True)]

    def step(self, slots: Sequence[int]) -> int:
        """The nanoseconds of a step in which these slots decode."""
        plans = [SeqPlan(slot, self._lengths[slot], [], from_previous=True, sample=True) for slot in slots]
        for slot in slots:
            self._lengths[slot] += 1
        return self._run(plans)

    def _prompt(self, slot: int, adapter: int, length: int) -> int:
        tokens = self._random.integers(3, 30_000, length).tolist()
        self._lengths[slot] = length
        pages = list(range(slot * self._pages, (slot + 1) * self._pages))
        init = SlotInit(_GREEDY, adapter=adapter)
        return self._run([SeqPlan(slot, 0, tokens, pages=pages, init=init, sample=True)])

    def _run(self, plans: list[SeqPlan]) -> int:
        self._step += 1
        return self._group.run(StepPlan(self._step, plans)).native_ns


def _print(name: str, some: Sequence[int], others: Sequence[int]) -> None:
    ratios = [one / other for one, other in zip(some, others, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(f"{name:50} {middle:.3f} ({low:.3f} to {high:.3f})", flush=True)


if __name__ == "__main__":
    main()
