"""The operations between the matrix products: norm and quantizing, rope and the writing of K and V, sampling and
pooling."""

from collections.abc import Mapping, Sequence
from functools import partial

from numaserve.kernels import Program
from numaserve.workers.bench.meter import Meter
from numaserve.workers.bench.operations.attention import rope_table
from numaserve.workers.bench.programs import (
    INT8,
    SlotTokens,
    begin,
    built,
    make_builder,
    ones,
    random_matrix,
    start_slot,
)
from numaserve.workers.bench.rows import Effort, Rows, Work, timed_row
from numaserve.workers.bench.shapes import SHAPES
from numaserve.workers.interface.protocol import PAGE_SIZE
from numaserve.workers.program.caches import CacheIndex, Heads
from numaserve.workers.program.slots import END_POOL, END_SAMPLE

_LAYERS = 4
_FP32, _BF16, _INT8 = 4, 2, 1
_SAMPLED_SLOTS = 16
_METHODS = {"greedy": (0.0, 1.0), "temperature": (1.0, 1.0), "top-p 0.95": (1.0, 0.95)}


def bench_rows(meter: Meter, effort: Effort, *, model: str, tokens: Sequence[int]) -> Rows:
    """Measure the operations on each token, with the bytes that are read and written.

    Activations of few tokens come from caches: more than the memory's bandwidth is then possible.
    """
    shape, most, team = SHAPES[model], max(tokens), meter.team
    heads = Heads(shape.heads, shape.kv_heads, shape.head_dim)
    b = make_builder(team, hidden=shape.hidden, step_tokens=most, context=most, heads=heads, layers=_LAYERS)
    residual, x = begin(b, team)
    width, kv_width = heads.query * heads.dim, 2 * heads.kv * heads.dim
    projection = random_matrix(team, width + kv_width, shape.hidden, INT8)
    rope, weight = rope_table(most, heads.dim), ones(shape.hidden)
    normed = width, kv_width // 2  # queries and keys
    norms = [ones(columns) for columns in normed]
    for layer in range(_LAYERS):
        qkv = b.linear(x, projection)
        b.divided_norm(qkv, norms, counted=normed, columns=normed, eps=1e-5)
        b.qkv_rope(qkv, cache=CacheIndex(0, layer), rope=rope)
        x = b.rms_norm(residual, weight, 1e-5)
    b.linear(x, projection)
    program = built(b, team)
    start_slot(program, 0, range(-(-most // PAGE_SIZE)))
    nodes = {  # bytes of a token, and how many there are in the program
        "rms_norm": (shape.hidden * (_FP32 + _BF16 + _INT8), _LAYERS + 1),  # writes its result in int8 too
        "divided_norm": (3 * sum(normed) * _FP32, _LAYERS),
        "rope_store": ((width + kv_width) * (_FP32 + _BF16), _LAYERS),
    }
    for count in tokens:
        yield from _token_rows(program, meter, effort, nodes, model=model, run=[(0, 0, count, 0)])


def bench_pool(meter: Meter, effort: Effort, *, model: str, tokens: Sequence[int]) -> Rows:
    """Measure pooling of the last token of each of `tokens` sequences."""
    hidden, most, team = SHAPES[model].hidden, max(tokens), meter.team
    b = make_builder(team, hidden=hidden, step_tokens=most, slots=most)
    residual, _ = begin(b, team)
    b.answer(b.pool(residual, "last", ones(hidden), 1e-5))
    program = built(b, team)
    for slot in range(most):
        start_slot(program, slot, [slot])
    nodes = {"pool": (2 * hidden * _FP32, 1)}
    for count in tokens:
        run = [(slot, 0, 1, END_POOL) for slot in range(count)]
        yield from _token_rows(program, meter, effort, nodes, model=model, run=run)


def _token_rows(
    program: Program,
    meter: Meter,
    effort: Effort,
    nodes: Mapping[str, tuple[int, int]],
    *,
    model: str,
    run: Sequence[SlotTokens],
) -> Rows:
    """Yield a row for each node, given its bytes per token and its copies in the program."""
    rows = sum(count for _, _, count, _ in run)
    with meter.around("bf16") as ceiling:
        found = effort.repeat(partial(meter.seconds, program, list(nodes), run, []))
    for (node, (nbytes, copies)), times in zip(nodes.items(), found, strict=True):
        what: dict[str, str | int] = {"model": model, "operation": node, "rows": rows}
        yield timed_row("small operations", what, times.per(copies), Work(float(nbytes * rows)), ceiling.best)


def bench_sampler(meter: Meter, effort: Effort, *, model: str) -> Rows:
    """Measure sampling from rows of logits: 1 row has one thread to itself, 16 rows have all threads."""
    vocab, hidden, team = SHAPES[model].vocab, 32, meter.team
    embedding = random_matrix(team, vocab, hidden)
    b = make_builder(team, hidden=hidden, step_tokens=32, slots=_SAMPLED_SLOTS, vocab=vocab)
    _, x = begin(b, team, embedding)
    b.sample(b.lm_head(x, embedding))
    program = built(b, team)
    for method, (temperature, top_p) in _METHODS.items():
        for slot in range(_SAMPLED_SLOTS):
            start_slot(program, slot, [slot], temperature=temperature, top_p=top_p)
        for rows in (1, _SAMPLED_SLOTS):
            run = [(slot, 0, 1, END_SAMPLE) for slot in range(rows)]
            with meter.around("bf16") as ceiling:
                (times,) = effort.repeat(partial(meter.seconds, program, ["sample"], run, []))
            what: dict[str, str | int] = {"model": model, "operation": f"sample, {method}", "rows": rows}
            yield timed_row("small operations", what, times.per(rows), Work(_FP32 * vocab), ceiling.best)
