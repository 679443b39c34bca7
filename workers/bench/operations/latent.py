"""Multi-head latent attention with heads of DeepSeek's sizes: attention, and the products with W_UK and W_UV around it.

The cache is filled with random numbers, not by a prompt: its contents do not matter.
"""

import ctypes
from dataclasses import dataclass
from functools import partial

import numpy as np
from numaserve.kernels import Program, Team
from numaserve.workers.bench.meter import Meter
from numaserve.workers.bench.operations.attention import rope_table
from numaserve.workers.bench.programs import (
    begin,
    built,
    make_builder,
    ones,
    place,
    random_matrix,
    spent_in_step,
    start_slot,
)
from numaserve.workers.bench.rows import Effort, Rows, Work, timed_row
from numaserve.workers.interface.protocol import PAGE_SIZE
from numaserve.workers.planning.ceilings import Range
from numaserve.workers.program.caches import CacheIndex, Heads

_NOPE, _ROPE, _LATENT, _VALUES = 128, 64, 512, 128
_HIDDEN = 32  # of the program; operations before attention do not matter
_NODES = ("latent_store", "latent_absorb", "attention", "latent_values")


@dataclass(frozen=True)
class LatentCase:
    """The last `new` tokens of each of some sequences of `context` tokens, with `heads` heads."""

    heads: int
    context: int
    new: int = 1
    sequences: int = 1


def bench_latent(meter: Meter, effort: Effort, *, case: LatentCase) -> Rows:
    """Measure the operations of one layer; its cache and its weights are read from memory."""
    program, weights = _program(meter.team, case)
    run = [(slot, case.context - case.new, case.new, 0) for slot in range(case.sequences)]
    done = spent_in_step(program, _NODES, run)
    with meter.around("bf16") as ceiling:
        found = effort.repeat(partial(meter.seconds, program, _NODES, run, [*weights, *program.kv_memory]))
    for node, spent, times in zip(_NODES, done, found, strict=True):
        work = Work(spent.nbytes, spent.flops)
        yield timed_row("latent attention", {**vars(case), "operation": node}, times, work, ceiling.best)


def _program(team: Team, case: LatentCase) -> tuple[Program, list[Range]]:
    """Return a program of one layer, and the memory of W_UK and W_UV."""
    heads, slots = case.heads, case.sequences
    b = make_builder(
        team,
        hidden=_HIDDEN,
        step_tokens=case.new * slots,
        slots=slots,
        context=case.context,
        heads=Heads(heads, 1, _LATENT + _ROPE, _LATENT, is_latent=True),
    )
    rope, scale = rope_table(case.context, _ROPE), (_NOPE + _ROPE) ** -0.5
    q = random_matrix(team, heads * (_NOPE + _ROPE), _HIDDEN)
    kv = random_matrix(team, _LATENT + _ROPE, _HIDDEN)
    _, x = begin(b, team)
    w_uk, w_uv = random_matrix(team, heads * _LATENT, _NOPE), random_matrix(team, heads * _VALUES, _LATENT)
    inputs, norm = (b.linear(x, q), b.linear(x, kv)), ones(_LATENT)
    b.latent_attention(*inputs, w_uk, w_uv, cache=CacheIndex(0, 0), rope=rope, norm=norm, eps=1e-6, scale=scale)
    program = built(b, team)
    _fill(program)
    pages = -(-case.context // PAGE_SIZE)
    for slot in range(slots):
        start_slot(program, slot, range(slot * pages, (slot + 1) * pages))
    return program, [place(w_uk), place(w_uv)]


def _fill(program: Program) -> None:
    numbers = (np.random.default_rng(0).standard_normal(1 << 20, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    for address, nbytes in program.kv_memory:
        memory = np.ctypeslib.as_array((ctypes.c_uint16 * (nbytes // 2)).from_address(address))
        memory[:] = np.resize(numbers, len(memory))
