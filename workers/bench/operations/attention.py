"""Causal attention of one sequence with the heads of a model, one layer's worth."""

from functools import partial

import numpy as np
from numaserve.kernels import Program, RopeTable, Team
from numaserve.workers.bench.meter import Meter
from numaserve.workers.bench.programs import (
    begin,
    built,
    make_builder,
    random_matrix,
    spent_in_step,
    start_slot,
    step,
)
from numaserve.workers.bench.rows import Effort, Rows, Work, timed_row
from numaserve.workers.bench.shapes import SHAPES
from numaserve.workers.interface.protocol import PAGE_SIZE
from numaserve.workers.interface.settings import KvCacheDtype, ModelSettings
from numaserve.workers.program.caches import CacheIndex, Heads

_HIDDEN = 32  # of the program; operations before attention do not matter
_DECODE_LAYERS = 2  # each with a cache of its own
_CHUNK = 256


def bench_prefill(meter: Meter, effort: Effort, *, model: str, tokens: int, kv_dtype: KvCacheDtype) -> Rows:
    """Measure a whole prompt in one step."""
    heads = _heads(model)
    program = _program(meter.team, heads, kv_dtype, layers=1, step_tokens=tokens, context=tokens)
    run = [(0, 0, tokens, 0)]
    with meter.around("bf16") as ceiling:
        # The step writes its keys and values just before it reads them.
        (times,) = effort.repeat(partial(meter.seconds, program, ["attention"], run, []))
    work = Work(flops=4.0 * heads.query * heads.dim * tokens * (tokens + 1) / 2)
    yield timed_row("attention", _what(model, kv_dtype, "prefill", tokens, tokens), times, work, ceiling.best)


def bench_decode(meter: Meter, effort: Effort, *, model: str, context: int, kv_dtype: KvCacheDtype) -> Rows:
    """Measure attention of one token to itself and the `context` - 1 tokens before it, whose keys and values are read
    from memory."""
    heads = _heads(model)
    program = _program(meter.team, heads, kv_dtype, layers=_DECODE_LAYERS, step_tokens=_CHUNK, context=context)
    _fill(program, context)
    run = [(0, context - 1, 1, 0)]
    (spent,) = spent_in_step(program, ["attention"], run)
    with meter.around("bf16") as ceiling:
        (times,) = effort.repeat(partial(meter.seconds, program, ["attention"], run, program.kv_memory))
    work = Work(spent.nbytes / _DECODE_LAYERS, 4.0 * heads.query * heads.dim * context)
    what = _what(model, kv_dtype, "decode", 1, context)
    yield timed_row("attention", what, times.per(_DECODE_LAYERS), work, ceiling.best)


def _program(
    team: Team, heads: Heads, kv_dtype: KvCacheDtype, *, layers: int, step_tokens: int, context: int
) -> Program:
    b = make_builder(
        team,
        hidden=_HIDDEN,
        step_tokens=step_tokens,
        context=context,
        heads=heads,
        layers=layers,
        settings=ModelSettings(kv_cache_dtype=kv_dtype),
    )
    rope = rope_table(context, heads.dim)
    projection = random_matrix(team, (heads.query + 2 * heads.kv) * heads.dim, _HIDDEN)
    _, x = begin(b, team)
    for layer in range(layers):
        q = b.qkv_rope(b.linear(x, projection), cache=CacheIndex(0, layer), rope=rope)
        b.attention(q, cache=CacheIndex(0, layer), scale=heads.dim**-0.5)
    program = built(b, team)
    start_slot(program, 0, range(-(-context // PAGE_SIZE)))
    return program


def _fill(program: Program, context: int) -> None:
    """Write keys and values of `context` tokens: those of many short prompts, which take less time than a long one."""
    for first in range(0, context, _CHUNK):
        tokens = min(_CHUNK, context - first)
        start_slot(program, 0, range(first // PAGE_SIZE, -(-(first + tokens) // PAGE_SIZE)))
        step(program, [(0, 0, tokens, 0)])
    start_slot(program, 0, range(-(-context // PAGE_SIZE)))


def rope_table(positions: int, head_dim: int) -> RopeTable:
    """Return angles like those of a model."""
    angles = np.arange(positions, dtype=np.float32)[:, None] * np.logspace(0, -4, head_dim // 2, dtype=np.float32)
    return RopeTable(np.cos(angles), np.sin(angles))


def _heads(model: str) -> Heads:
    shape = SHAPES[model]
    return Heads(shape.heads, shape.kv_heads, shape.head_dim)


def _what(model: str, kv_dtype: str, phase: str, new: int, context: int) -> dict[str, str | int]:
    head_dim = SHAPES[model].head_dim
    return {"model": model, "head_dim": head_dim, "kv": kv_dtype, "phase": phase, "new": new, "context": context}
