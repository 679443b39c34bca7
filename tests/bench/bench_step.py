"""Whole steps of a model on pinned ranks, without a front end: decode and prefill beside the machine's ceilings.

python tests/bench/bench_step.py [--model llama-1b|demo|PATH ...] [--tp 1 2] [--vocab N]

`llama-1b` is a random checkpoint of Llama-3.2-1B's shape, written to a temporary folder. Each rank is a process of this
script placed as the server would place it. All ranks run the same list of steps: a sampled token is only ever named as
"the one this sequence sampled last", so nothing needs to be sent between them. Loading is compared with reading the
file from the page cache, on one thread.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from bench_common import Ceilings, Report, Times, team_ceilings
from numaserve.shm_comm import create_segment
from numaserve.workers.model import RankModel
from numaserve.workers.models.config import load_model_config
from numaserve.workers.node import NodeContext
from numaserve.workers.plan import GroupPlan, PlanOptions, make_plan
from numaserve.workers.protocol import (
    BF16_WEIGHTS,
    PAGE_SIZE,
    Launch,
    OperationProfile,
    SamplingParams,
    SeqPlan,
    SlotInit,
    StepPlan,
    WeightFormats,
)
from numaserve.workers.topology import read_topology
from numaserve.workers.weights.hub import resolve_model
from random_llama import write_random_llama

PROMPT, DECODED, BATCH, BATCH_PROMPT = 1024, 64, 16, 256
CONTEXT = PROMPT + DECODED + PAGE_SIZE
STEP_TOKENS = 512  # the server's default for --chunked-prefill-size
PREFILLS = 3
LOADS = 3
INT8_WEIGHTS = WeightFormats(linear="int8", lm_head="int8")
BYTES = {"bf16": 2, "int8": 1}
GREEDY = SamplingParams(temperature=0.0)


@dataclass
class Phase:
    """Seconds of the repetitions of one kind of step, and nanoseconds by node over all of them."""

    wall: list[float] = field(default_factory=list)
    native: list[float] = field(default_factory=list)
    all_reduce: list[float] = field(default_factory=list)
    nodes: dict[str, int] = field(default_factory=dict)
    ceilings: Ceilings | None = None  # of the rank's own cores, while the other ranks measure too


class Rank:
    """One rank's model, driven step by step."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._node = NodeContext.enter(launch)
        self.load_seconds: list[float] = []
        for _ in range(LOADS):
            self._model = None  # its memory is needed for the next
            begin = time.perf_counter()
            self._model = RankModel(launch, self._node, self._loaded(begin))
        self._tokens = np.random.default_rng(0).integers(3, 1000, PROMPT).tolist()
        self._steps = 0

    def measure(self) -> dict[str, Any]:
        """Run everything; what the parent wants to know."""
        self._prefill(0, PROMPT)
        phases = {
            "prefill": self._phase(lambda: self._prefill(0, PROMPT), PREFILLS),
            "decode": self._decode([0], PROMPT),
        }
        for slot in range(BATCH):
            self._prefill(slot, BATCH_PROMPT)
        phases["batch"] = self._decode(range(BATCH), BATCH_PROMPT)
        return {
            "isa": self._model.isa,
            "load_s": self.load_seconds,
            "kv_bytes_per_token": self._model.kv_bytes / self._launch.num_pages / PAGE_SIZE,
            "node_bytes": {each.name: each.weight_bytes for each in self._model.operations()},
            "node_parameters": {each.name: _parameters(each) for each in self._model.operations()},
            "phases": {name: asdict(phase) for name, phase in phases.items()},
        }

    def _loaded(self, begin: float) -> Callable[[int, int], None]:
        def report(done: int, total: int) -> None:
            if done >= total:
                self.load_seconds.append(time.perf_counter() - begin)

        return report

    def _prefill(self, slot: int, count: int) -> tuple[float, float, float]:
        first = slot * (self._launch.num_pages // BATCH)
        pages = list(range(first, first + -(-(count + DECODED) // PAGE_SIZE)))
        times = np.zeros(3)
        for start in range(0, count, STEP_TOKENS):
            end = min(count, start + STEP_TOKENS)
            begins = start == 0
            seq = SeqPlan(
                slot,
                start,
                self._tokens[start:end],
                pages=pages if begins else [],
                init=SlotInit(GREEDY) if begins else None,
                sample=end == count,
            )
            times += self._run([seq])
        return tuple(times)

    def _decode(self, slots: Sequence[int], start: int) -> Phase:
        positions = iter(range(start, start + DECODED))

        def one() -> tuple[float, float, float]:
            position = next(positions)
            return self._run([SeqPlan(slot, position, [], from_previous=True, sample=True) for slot in slots])

        return self._phase(one, DECODED)

    def _phase(self, work: Callable[[], tuple[float, float, float]], count: int) -> Phase:
        weights = self._launch.formats.linear
        ceilings = team_ceilings(self._node.team, weights)
        phase, before = Phase(), self._nodes()
        for _ in range(count):
            wall, native, all_reduce = work()
            phase.wall.append(wall)
            phase.native.append(native)
            phase.all_reduce.append(all_reduce)
        phase.ceilings = ceilings.better(team_ceilings(self._node.team, weights))
        phase.nodes = {name: ns - before[name] for name, ns in self._nodes().items()}
        return phase

    def _nodes(self) -> dict[str, int]:
        return {each.name: each.ns for each in self._model.operations()}

    def _run(self, seqs: list[SeqPlan]) -> tuple[float, float, float]:
        self._steps += 1
        begin = time.perf_counter()
        answer = self._model.run(StepPlan(self._steps, seqs))
        return time.perf_counter() - begin, answer.native_ns * 1e-9, answer.all_reduce_ns * 1e-9


def run_ranks(plan: GroupPlan) -> list[dict[str, Any]]:
    """Run every rank to its end; what each measured."""
    world = len(plan.launches)
    with ExitStack() as exits:
        fd, nonce = -1, 0
        if world > 1:
            segment = exits.enter_context(create_segment(world, plan.ring_lanes, plan.ring_slot_bytes))
            fd, nonce = segment.fd, segment.nonce
        ranks = []
        for launch in plan.launches:
            message = msgspec.json.encode(msgspec.structs.replace(launch, ring_fd=fd, ring_nonce=nonce))
            command = [sys.executable, __file__, "--rank", message]
            rank = subprocess.Popen(command, stdout=subprocess.PIPE, pass_fds=[fd] if fd >= 0 else [])
            exits.callback(rank.kill)
            ranks.append(rank)
        answers = []
        for index, rank in enumerate(ranks):
            answers.append(rank.communicate()[0])
            if rank.returncode != 0:
                raise RuntimeError(f"rank {index} exited with status {rank.returncode}")
        return [json.loads(answer) for answer in answers]


def _parameters(operation: OperationProfile) -> float:
    return operation.weight_bytes / BYTES[operation.format] if operation.weight_bytes else 0.0


def bench_model(report: Report, name: str, path: Path, tp: int, formats: WeightFormats) -> None:
    """Measure a model on `tp` ranks and report it."""
    options = PlanOptions(
        model=str(path),
        max_running_requests=BATCH,
        max_step_tokens=STEP_TOKENS,
        mem_fraction_static=0.85,
        step_deadline_s=120.0,
        tp=tp,
        context_length=CONTEXT,
        formats=formats,
    )
    config = load_model_config(path)
    plan = make_plan(options, config, read_topology())
    ranks = run_ranks(plan)
    weights = {node: sum(rank["node_bytes"][node] for rank in ranks) for node in ranks[0]["node_bytes"]}
    kv = sum(rank["kv_bytes_per_token"] for rank in ranks)
    parameters = {node: sum(rank["node_parameters"][node] for rank in ranks) for node in weights}
    layers = sum(count for node, count in parameters.items() if node != "lm_head")
    attention = 4.0 * config.num_qo_heads * config.head_dim * config.num_layers
    at = {"model": name, "weights": formats.linear, "tp": tp}
    middle = DECODED / 2

    def add(phase: str, batch: int, context: float, nbytes: float, flops: float) -> None:
        figures = ranks[0]["phases"][phase]
        ceilings = reduce(Ceilings.plus, (Ceilings(**rank["phases"][phase]["ceilings"]) for rank in ranks))
        where = {**at, "phase": phase, "batch": batch, "context": int(context)}
        _add_phase(report, where, figures, nbytes, flops, ceilings)

    add("prefill", 1, PROMPT, 0.0, 2.0 * layers * PROMPT + attention * PROMPT * (PROMPT + 1) / 2)
    for phase, batch, prompt in (("decode", 1, PROMPT), ("batch", BATCH, BATCH_PROMPT)):
        seen = prompt + middle
        total = layers + parameters["lm_head"]
        nbytes = sum(weights.values()) + batch * seen * kv
        add(phase, batch, seen, nbytes, batch * (2.0 * total + attention * seen))
    for phase, rows in (("prefill", PROMPT), ("decode", 1), ("batch", BATCH)):
        _add_nodes(report, {**at, "phase": phase}, ranks[0], phase, rows)
    load = min(max(times) for times in zip(*(rank["load_s"] for rank in ranks), strict=True))
    read, read_new = read_seconds(path)
    report.add(
        "loading",
        **at,
        load_s=load,
        read_s=read,
        read_to_new_memory_s=read_new,
        load_over_read=load / read,
        load_over_read_to_new_memory=load / read_new,
    )


def _add_phase(
    report: Report, at: dict[str, Any], figures: dict[str, Any], nbytes: float, flops: float, ceilings: Ceilings
) -> None:
    native, wall = sum(figures["native"]), sum(figures["wall"])
    tokens = PROMPT if at["phase"] == "prefill" else at["batch"]
    report.add(
        "steps",
        times=Times.of(figures["wall"]),
        ceilings=ceilings,
        nbytes=nbytes,
        flops=flops,
        **at,
        tok_s=tokens / min(figures["wall"]),
        share_native=native / wall,
        share_all_reduce=sum(figures["all_reduce"]) / wall,
    )


def _add_nodes(report: Report, at: dict[str, Any], rank: dict[str, Any], phase: str, rows: int) -> None:
    """Where rank 0 spends the time of a phase; means over its repetitions, with its barriers."""
    figures = rank["phases"][phase]
    total, count = sum(figures["nodes"].values()), len(figures["wall"])
    for node, ns in sorted(figures["nodes"].items(), key=lambda item: -item[1]):
        if ns < 0.005 * total:
            continue
        seconds, nbytes = ns * 1e-9 / count, rank["node_bytes"][node]
        flops = 2.0 * rank["node_parameters"][node] * rows
        rate = {"gb_s": nbytes / seconds / 1e9, "gflop_s": flops / seconds / 1e9} if nbytes else {}
        if phase == "prefill" and node == "lm_head":
            rate = {}
        report.add("nodes (rank 0, mean)", **at, node=node, ms=seconds * 1e3, share_of_step=ns / total, **rate)


def read_seconds(path: Path) -> tuple[float, float]:
    """Seconds to read the weights from the page cache on one thread, best of some times: piece by piece into one
    buffer, and whole into new memory, which is what a copy of them needs at least."""
    files = [path] if path.is_file() else sorted(path.glob("*.safetensors"))
    buffer = bytearray(1 << 20)

    def through_buffer(file: Path) -> None:
        with file.open("rb", buffering=0) as stream:
            while stream.readinto(buffer):
                pass

    def best(read: Callable[[Path], object]) -> float:
        samples = []
        for _ in range(LOADS):
            begin = time.perf_counter()
            for file in files:
                read(file)
            samples.append(time.perf_counter() - begin)
        return min(samples)

    return best(through_buffer), best(lambda file: np.fromfile(file, np.uint8))


@contextmanager
def checkpoint(name: str, vocab: int) -> Iterator[Path]:
    """The folder or file of a model; `llama-1b` exists only meanwhile."""
    if name != "llama-1b":
        yield resolve_model(name)
        return
    folder = Path(tempfile.mkdtemp(prefix="numaserve-bench-"))
    try:
        yield write_random_llama(folder, vocab)
    finally:
        shutil.rmtree(folder)


def main() -> int:
    """Run a rank, or measure every model on every number of ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=["demo", "llama-1b"])
    parser.add_argument("--tp", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--vocab", type=int, default=49152, help="vocabulary of llama-1b; the real one has 128256")
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank:
        print(json.dumps(Rank(msgspec.json.decode(arguments.rank, type=Launch)).measure()))
        return 0
    report = Report("step")
    for name in arguments.model:
        with checkpoint(name, arguments.vocab) as path:
            for tp in arguments.tp:
                for formats in (BF16_WEIGHTS, INT8_WEIGHTS):
                    bench_model(report, name, path, tp, formats)
                    report.refresh()
    report.finish()
    return 0


if __name__ == "__main__":
    sys.exit(main())
