"""Multi-head latent attention with heads of DeepSeek's sizes: attention, and the products with W_UK and W_UV around it.

The cache is filled with random numbers, not by a prompt: its contents do not matter.
"""

import ctypes
from dataclasses import dataclass
from functools import partial

import numpy as np
from numaserve.kernels import Program, Team
from numaserve.workers.bench.operations.attention import rope_table
from numaserve.workers.bench.programs import (
    begin,
    built,
    copies_beyond_caches,
    make_builder,
    ones,
    random_matrix,
    start_slot,
    timed_step,
    work_of_step,
)
from numaserve.workers.bench.rows import Ceiling, Effort, Rows, Work, timed_row
from numaserve.workers.interface.protocol import PAGE_SIZE
from numaserve.workers.planning.ceilings import rank_ceilings
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


def bench_latent(team: Team, effort: Effort, *, case: LatentCase) -> Rows:
    """Measure the operations of one layer."""
    layers = copies_beyond_caches(case.sequences * case.context * (_LATENT + _ROPE) * 2) if case.new == 1 else 1
    program = _program(team, case, layers)
    run = [(slot, case.context - case.new, case.new, 0) for slot in range(case.sequences)]
    what: dict[str, str | int] = dict(vars(case))
    for node in _NODES:
        nbytes, flops = work_of_step(program, node, run)
        with Ceiling(partial(rank_ceilings, team)) as ceiling:
            times = effort.repeat(partial(timed_step, program, node, run)).per(layers)
        work = Work(nbytes / layers, flops / layers)
        yield timed_row("latent attention", what | {"operation": node}, times, work, ceiling.best)


def _program(team: Team, case: LatentCase, layers: int) -> Program:
    heads, slots = case.heads, case.sequences
    b = make_builder(
        team,
        hidden=_HIDDEN,
        step_tokens=case.new * slots,
        slots=slots,
        context=case.context,
        heads=Heads(heads, 1, _LATENT + _ROPE, _LATENT, is_latent=True),
        layers=layers,
    )
    rope, scale = rope_table(case.context, _ROPE), (_NOPE + _ROPE) ** -0.5
    q = random_matrix(team, heads * (_NOPE + _ROPE), _HIDDEN)
    kv = random_matrix(team, _LATENT + _ROPE, _HIDDEN)
    _, x = begin(b, team)
    for layer in range(layers):
        w_uk, w_uv = random_matrix(team, heads * _LATENT, _NOPE), random_matrix(team, heads * _VALUES, _LATENT)
        inputs, norm = (b.linear(x, q), b.linear(x, kv)), ones(_LATENT)
        b.latent_attention(*inputs, w_uk, w_uv, cache=CacheIndex(0, layer), rope=rope, norm=norm, eps=1e-6, scale=scale)
    program = built(b, team)
    _fill(program)
    pages = -(-case.context // PAGE_SIZE)
    for slot in range(slots):
        start_slot(program, slot, range(slot * pages, (slot + 1) * pages))
    return program


def _fill(program: Program) -> None:
    numbers = (np.random.default_rng(0).standard_normal(1 << 20, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    for address, nbytes in program.kv_memory:
        memory = np.ctypeslib.as_array((ctypes.c_uint16 * (nbytes // 2)).from_address(address))
        memory[:] = np.resize(numbers, len(memory))
