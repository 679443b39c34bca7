"""The kernels that are compared with another commit: cases whose every run measures them once more, and their results.

The process of a tree (`amx_tree.py`) imports this file over the packages of that tree, which may be older: it uses
little of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

from numaserve.kernels import Program, Team
from numaserve.workers.bench.meter import Meter
from numaserve.workers.bench.operations.attention import bench_prefill, rope_table
from numaserve.workers.bench.operations.experts import bench_experts
from numaserve.workers.bench.operations.gemm import bench_gemm
from numaserve.workers.bench.programs import (
    FORMATS,
    Format,
    begin,
    built,
    make_builder,
    random_matrix,
    start_slot,
    step,
)
from numaserve.workers.bench.rows import Effort, Row
from numaserve.workers.bench.shapes import SHAPES
from numaserve.workers.program.caches import CacheIndex, Heads
from numaserve.workers.program.slots import END_POOL

from tests.bench.goals import LARGE, LARGE_SHARE, MIXTURE, SHARE_THREADS, SMALL

_MOST, _EFFORT = 64, Effort(seconds=0.05, most=20)  # runs of a case, and the repetitions of a run
_PARTS = {"qkv": 1, "o": 1, "mlp": 2}  # of a layer, with the rows of a run
_FORMATS = {"bf16": (64, 512), "int8": (64, 512), "int4/32": (512,), "int4/128": (512,), "fp8/128": (512,)}
_EXPERT_ROWS, _PROMPT, _PAGE = 4, 1024, 32


@dataclass(frozen=True)
class Case:
    """A case. A run takes `rows` rows of the iterator. `checksum` is of results, where these are compared."""

    name: str
    rows: int
    measure: Callable[[Meter, Sequence[int]], Iterator[Row]]  # the meter of a team, and the team's processors
    checksum: Callable[[Team], str] | None = None


def cases() -> list[Case]:
    """Return all cases."""
    return [*_products(), *_attention(), *_shares(), *_experts()]


def _products() -> Iterator[Case]:
    for format in FORMATS:
        for m in _FORMATS.get(str(format), ()):
            for part, rows in _PARTS.items():
                what = {"model": SMALL, "part": part, "format": format, "m_values": [m] * _MOST}
                yield Case(
                    f"{format} {part}, M = {m}",
                    rows,
                    lambda meter, _, what=what: bench_gemm(meter, _EFFORT, **what),
                    partial(_checksum_of_products, part=part, format=format, m=m),
                )


def _attention() -> Iterator[Case]:
    for model in (SMALL, LARGE):
        run = partial(bench_prefill, model=model, tokens=_PROMPT, kv_dtype="bf16")
        yield Case(
            f"attention, heads of {SHAPES[model].head_dim}, {_PROMPT} tokens",
            1,
            lambda meter, _, run=run: chain.from_iterable(run(meter, _EFFORT) for _ in range(_MOST)),
            partial(_checksum_of_attention, model=model),
        )


def _shares() -> Iterator[Case]:
    for format in FORMATS[:2]:
        for part, rows in _PARTS.items():
            for model in (LARGE, LARGE_SHARE):
                what = {"model": model, "part": part, "format": format, "m_values": [512] * _MOST}
                yield Case(f"share of {SHARE_THREADS}: {format} {model} {part}", rows, partial(_share, what))


def _share(what: dict[str, object], _: Meter, cpus: Sequence[int]) -> Iterator[Row]:
    from numaserve.workers.bench.operations.share import bench_share  # earlier commits lack it

    return bench_share(Meter(Team(cpus[:1])), _EFFORT, **what, threads=SHARE_THREADS)


def _experts() -> Iterator[Case]:
    what = {"model": MIXTURE, "format": FORMATS[0], "m_values": [_PROMPT] * _MOST}
    yield Case(f"experts, {_PROMPT} tokens", _EXPERT_ROWS, lambda meter, _: bench_experts(meter, _EFFORT, **what))


def _checksum_of_products(team: Team, *, part: str, format: Format, m: int) -> str:
    """Return a checksum of all rows: each is a sequence of its own, whose last row is pooled."""
    shape = SHAPES[SMALL]
    width = shape.heads * shape.head_dim

    def weight(n: int, k: int) -> object:
        return random_matrix(team, n, k, format)

    b = make_builder(team, hidden=shape.hidden, step_tokens=m, slots=m)
    residual, x = begin(b, team)
    match part:
        case "qkv":
            pooled = b.pool(b.linear(x, weight(width + 2 * shape.kv_heads * shape.head_dim, shape.hidden)), "last")
        case "o":
            b.add_all_reduce(residual, b.linear_partial(x, weight(shape.hidden, width)))
            pooled = b.pool(residual, "last")
        case _:
            first = weight(2 * shape.intermediate, shape.hidden)
            down = weight(shape.hidden, shape.intermediate)
            b.add_all_reduce(residual, b.gated_mlp(x, first, down, "silu"))
            pooled = b.pool(residual, "last")
    b.answer(pooled)
    program = built(b, team)
    for slot in range(m):
        start_slot(program, slot, [slot])
    return _checksum(program, [(slot, 0, 1, END_POOL) for slot in range(m)])


def _checksum_of_attention(team: Team, *, model: str) -> str:
    """Return a checksum of the mean of all rows, multiplied by a weight."""
    shape, hidden = SHAPES[model], 32
    heads = Heads(shape.heads, shape.kv_heads, shape.head_dim)
    b = make_builder(team, hidden=hidden, step_tokens=_PROMPT, context=_PROMPT, heads=heads)
    residual, x = begin(b, team)
    qkv = b.linear(x, random_matrix(team, (heads.query + 2 * heads.kv) * heads.dim, hidden))
    q = b.qkv_rope(qkv, cache=CacheIndex(0, 0), rope=rope_table(_PROMPT, heads.dim))
    y = b.attention(q, cache=CacheIndex(0, 0), scale=heads.dim**-0.5)
    b.add_all_reduce(residual, b.linear_partial(y, random_matrix(team, hidden, heads.query * heads.dim)))
    b.answer(b.pool(residual, "mean"))
    program = built(b, team)
    start_slot(program, 0, range(_PROMPT // _PAGE))
    return _checksum(program, [(0, 0, _PROMPT, END_POOL)])


def _checksum(program: Program, sequences: Sequence[tuple[int, int, int, int]]) -> str:
    step(program, sequences)
    digest = hashlib.blake2b(digest_size=16)
    for _, values in program.pooled:
        digest.update(values)
    return digest.hexdigest()
