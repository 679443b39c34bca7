"""The kernels one by one, through the Program that serves: packed matrix products, attention, sampling, barriers.

Each Program repeats one operation over weights or pages that together are larger than the caches, so that every
repetition comes from memory as it does in a model. Times are the Program's own, per node, without Python.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import numpy as np
from bench_common import Report, all_cpus, repeat, team_ceilings
from numaserve.kernels import PackedMatrix, Program, RopeTable, Team, Vector, barrier_ns
from numaserve.workers.profiling import MIN_READ_BYTES, last_level_cache_bytes
from numaserve.workers.program import ProgramBuilder, ProgramLimits, RankShape
from numaserve.workers.protocol import PAGE_SIZE, WeightFormat

VOCAB = 64
LLAMA_VOCAB = 49152
BF16 = 2
ROWS = (1, 4, 16, 64, 256, 1024)
SHAPES = {  # name: (K, N)
    "SmolLM2-135M qkv": (576, 960),
    "SmolLM2-135M gate_up": (576, 3072),
    "SmolLM2-135M down": (1536, 576),
    "Llama-3.2-1B qkv": (2048, 3072),
    "Llama-3.2-1B o": (2048, 2048),
    "Llama-3.2-1B gate_up": (2048, 16384),
    "Llama-3.2-1B down": (8192, 2048),
}
OPENMP_BARRIER = """
#include <omp.h>
#include <stdio.h>
int main(void) {
  enum { kBarriers = 20000, kPasses = 7 };
  double best = 1e9;
  for (int pass = 0; pass < kPasses; ++pass) {
    const double begin = omp_get_wtime();
#pragma omp parallel
    for (int i = 0; i < kBarriers; ++i) {
#pragma omp barrier
    }
    const double time = omp_get_wtime() - begin;
    if (time < best) best = time;
  }
  printf("%g", best / kBarriers * 1e9);
  return 0;
}
"""


def random_matrix(team: Team, n: int, k: int, weights: str = "bf16") -> PackedMatrix:
    """A matrix of small normal numbers in that format."""
    values = np.random.default_rng(0).standard_normal((n, k), np.float32).view(np.uint32) >> 16
    matrix = PackedMatrix(n, k, weights)
    data = values.astype(np.uint16).reshape(-1).view(np.uint8)
    matrix.pack(team, data, "bf16", source_cols=k, rows=np.arange(n, dtype=np.int32), dst_row=0)
    return matrix


def builder(
    team: Team, *, hidden: int, step_tokens: int, slots: int = 1, context: int = 32, **more: int
) -> ProgramBuilder:
    """A builder for a Program on one rank with room for `slots` sequences of `context` tokens."""
    pages = -(-context // PAGE_SIZE)
    shape = {"q_heads": 1, "kv_heads": 1, "head_dim": 32, "num_layers": 1, "vocab": VOCAB} | more
    return ProgramBuilder(
        shape=RankShape(
            q_heads=shape["q_heads"],
            kv_heads=shape["kv_heads"],
            head_dim=shape["head_dim"],
            num_layers=shape["num_layers"],
            hidden_size=hidden,
            vocab_bounds=[0, shape["vocab"]],
        ),
        limits=ProgramLimits(
            max_step_tokens=step_tokens,
            max_logit_rows=max(slots, 16),
            max_slots=slots,
            pages_per_slot=pages,
            num_pages=pages * slots,
        ),
        team=team,
    )


def start_slot(
    program: Program, slot: int, pages: Sequence[int], *, temperature: float = 0.0, top_p: float = 1.0
) -> None:
    """Begin a sequence with all its pages."""
    program.init_slot(slot, temperature, 0, top_p, 0.0, 1.0, 0.0, 0.0, 1, [], [], -1, 0, [], False, [], [])
    program.append_pages(slot, list(pages))


def step(program: Program, sequences: Sequence[tuple[int, int, int, bool]]) -> None:
    """Run one step over (slot, start, count, sample) sequences of arbitrary tokens."""
    rows = np.array([(slot, start, count, 0, sample, 0) for slot, start, count, sample in sequences], np.int32)
    tokens = np.arange(rows[:, 2].sum(), dtype=np.int32) % VOCAB
    program.step(rows, tokens, np.empty(0, np.int32))


def node_seconds(program: Program, name: str) -> float:
    """Seconds spent in all nodes of that name so far."""
    return sum(ns for node, _, ns, *_ in program.profile() if node == name) * 1e-9


def timed_step(program: Program, name: str, sequences: Sequence[tuple[int, int, int, bool]]) -> float:
    """Seconds that the nodes of that name take in one step."""
    before = node_seconds(program, name)
    step(program, sequences)
    return node_seconds(program, name) - before


def bench_gemm(report: Report, team: Team, weights: str) -> None:
    """x[M, K] · w[N, K]ᵀ for the shapes of two models. Quantising x, which is an operation of its own, is left out."""
    enough = max(MIN_READ_BYTES, 4 * last_level_cache_bytes())
    for name, (k, n) in SHAPES.items():
        first = random_matrix(team, n, k, weights)
        matrices = [first, *(random_matrix(team, n, k, weights) for _ in range(1, -(-enough // first.nbytes)))]
        copies = len(matrices)
        embedding, norm = random_matrix(team, VOCAB, k), Vector(np.ones(k, np.float32))
        b = builder(team, hidden=k, step_tokens=max(ROWS), context=max(ROWS))
        x = b.rms_norm(b.embed(embedding, first_row=0), norm, 1e-5)
        for matrix in matrices:
            b.linear(x, matrix)
        program = b.build()
        start_slot(program, 0, range(max(ROWS) // PAGE_SIZE))
        for m in ROWS:
            run = [(0, 0, m, False)]
            step(program, run)
            before = team_ceilings(team, weights)
            times = repeat(lambda p=program, run=run: timed_step(p, "linear", run), seconds=0.7).per(copies)
            ceilings = before.better(team_ceilings(team, weights))
            work = {"nbytes": float(first.nbytes), "flops": 2.0 * m * n * k}
            report.add(f"packed GEMM, {weights}", times=times, ceilings=ceilings, **work, matrix=name, K=k, N=n, M=m)


def attention_program(team: Team, *, layers: int, step_tokens: int, context: int) -> Program:
    """A Program of nothing but attention with Llama-3.2-1B's heads; every layer has a cache of its own."""
    q_heads, kv_heads, head_dim, hidden = 32, 8, 64, 32
    b = builder(
        team,
        hidden=hidden,
        step_tokens=step_tokens,
        context=context,
        q_heads=q_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        num_layers=layers,
    )
    angles = np.arange(context, dtype=np.float32)[:, None] * np.logspace(0, -4, head_dim // 2, dtype=np.float32)
    rope = RopeTable(np.cos(angles), np.sin(angles))
    projection = random_matrix(team, (q_heads + 2 * kv_heads) * head_dim, hidden)
    embedding, norm = random_matrix(team, VOCAB, hidden), Vector(np.ones(hidden, np.float32))
    x = b.rms_norm(b.embed(embedding, first_row=0), norm, 1e-5)
    for layer in range(layers):
        q = b.qkv_rope(b.linear(x, projection), layer=layer, rope=rope)
        b.attention(q, layer=layer, scale=head_dim**-0.5)
    program = b.build()
    start_slot(program, 0, range(context // PAGE_SIZE))
    return program


def bench_attention(report: Report, team: Team) -> None:
    """Causal attention of Llama-3.2-1B's 32 query heads over 8 KV heads of 64, one layer, one sequence."""
    width, kv_width = 32 * 64, 8 * 64
    for tokens in (1024, 4096):
        program = attention_program(team, layers=1, step_tokens=tokens, context=tokens)
        times = repeat(lambda p=program, t=tokens: timed_step(p, "attention", [(0, 0, t, False)]))
        pairs = tokens * (tokens + 1) / 2
        report.add("attention", times=times, flops=4.0 * width * pairs, phase="prefill", new=tokens, context=tokens)
    context, layers, chunk = 8192, 8, 1024
    program = attention_program(team, layers=layers, step_tokens=chunk, context=context)
    for start in range(0, context, chunk):
        step(program, [(0, start, chunk, False)])
    before = team_ceilings(team)
    times = repeat(lambda: timed_step(program, "attention", [(0, context - 1, 1, False)])).per(layers)
    ceilings = before.better(team_ceilings(team))
    nbytes = 2.0 * kv_width * BF16 * context
    work = {"nbytes": nbytes, "flops": 4.0 * width * context}
    report.add("attention", times=times, ceilings=ceilings, **work, phase="decode", new=1, context=context)


def bench_sampler(report: Report, team: Team) -> None:
    """Seconds a row, over a vocabulary of 49152; 1 row has one thread to itself, 16 rows have all of them."""
    hidden, slots = 32, 16
    embedding, norm = random_matrix(team, LLAMA_VOCAB, hidden), Vector(np.ones(hidden, np.float32))
    b = builder(team, hidden=hidden, step_tokens=32, slots=slots, vocab=LLAMA_VOCAB)
    x = b.rms_norm(b.embed(embedding, first_row=0), norm, 1e-5)
    b.sample(b.lm_head(x, embedding))
    program = b.build()
    for name, temperature, top_p in (("greedy", 0.0, 1.0), ("temperature", 1.0, 1.0), ("top-p 0.95", 1.0, 0.95)):
        for slot in range(slots):
            start_slot(program, slot, [slot], temperature=temperature, top_p=top_p)
        for rows in (1, slots):
            sequences = [(slot, 0, 1, True) for slot in range(rows)]
            times = repeat(lambda s=sequences: timed_step(program, "sample", s), seconds=0.5).per(rows)
            report.add("sampler, one row", times=times, nbytes=4.0 * LLAMA_VOCAB, method=name, rows=rows)


def bench_barrier(report: Report, ours: Sequence[float], theirs: Sequence[float | str]) -> None:
    """The team's barrier beside OpenMP's, on the same processors; each measured at both ends of the run."""
    figures: dict[str, object] = {"team_ns": min(ours), "openmp_ns": theirs[0]}
    measured = [ns for ns in theirs if isinstance(ns, float)]
    if measured:
        figures |= {"openmp_ns": min(measured), "openmp_over_team": min(measured) / min(ours)}
    report.add("barrier", **figures)


def openmp_barrier_ns(cpus: Sequence[int]) -> float | str:
    """Nanoseconds of an OpenMP barrier of one thread on each processor, or why there is no figure."""
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("cc") or shutil.which("clang")
    if compiler is None:
        return "skipped: there is no C compiler"
    environment = os.environ | {
        "OMP_NUM_THREADS": str(len(cpus)),
        "OMP_PLACES": ",".join(f"{{{cpu}}}" for cpu in cpus),
        "OMP_PROC_BIND": "true",
        "OMP_WAIT_POLICY": "active",
    }
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder) / "barrier.c", Path(folder) / "barrier"
        source.write_text(OPENMP_BARRIER)
        built = subprocess.run([compiler, "-O2", "-fopenmp", source, "-o", program], check=False, capture_output=True)
        if built.returncode != 0:
            return f"skipped: {compiler} cannot build OpenMP programs"
        runs = [subprocess.run([program], check=True, capture_output=True, env=environment) for _ in range(3)]
        return min(float(run.stdout) for run in runs)


def main() -> int:
    """Run all of them."""
    report = Report("kernels")
    cpus = all_cpus()
    openmp = [openmp_barrier_ns(cpus)]
    team = Team(cpus)
    barriers = [barrier_ns(team)]
    bench_sampler(report, team)
    bench_attention(report, team)
    for weights in get_args(WeightFormat):
        bench_gemm(report, team, weights)
    barriers.append(barrier_ns(team))
    # The team pinned this thread; what follows is measured on all processors.
    os.sched_setaffinity(0, cpus)
    openmp.append(openmp_barrier_ns(cpus))
    bench_barrier(report, barriers, openmp)
    report.finish()
    return 0


if __name__ == "__main__":
    sys.exit(main())
