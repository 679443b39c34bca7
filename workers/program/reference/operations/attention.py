"""Rope, the writing of keys and values, and attention over pages."""

from dataclasses import dataclass, replace

import torch
from numaserve.workers.interface.protocol import PAGE_SIZE
from numaserve.workers.interface.windows import ALL, Window
from numaserve.workers.program.buffers import padded
from numaserve.workers.program.ops.attention import Attention, RopeStore
from numaserve.workers.program.ops.base import Rope, Vector
from numaserve.workers.program.reference.images import image_end
from numaserve.workers.program.reference.operations.rows import normed
from numaserve.workers.program.reference.run import Run
from numaserve.workers.program.reference.step import SequenceRows

_ROWS = 64  # tokens whose scores are there at once


def rope_store(run: Run, op: RopeStore) -> None:
    """Heads of queries and keys are normalised and rotated, in one order or the other."""
    heads = run.heads(op.cache)
    sizes = [(heads.query, heads.dim), (heads.kv, heads.dim), (heads.kv, heads.values)]
    sizes = sizes[: {"projected": 3, "keys": 2, "cached": 1}[op.source]]
    parts = run.get(op.qkv).split([count * dim for count, dim in sizes], dim=1)
    q, *kv = (part.unflatten(1, size) for part, size in zip(parts, sizes, strict=True))

    rows = None if op.rope_rows is None else run.get(op.rope_rows)

    def prepared(x: torch.Tensor, norm: Vector | None) -> torch.Tensor:
        if op.norm == "none":
            return rotated(run, x, op.rope, rows)
        weight = x.new_ones(heads.dim) if norm is None else run.weights.values(norm)
        if op.norm == "after":
            return normed(rotated(run, x, op.rope, rows), weight, op.eps)
        return rotated(run, normed(x, weight, op.eps), op.rope, rows)

    if kv:
        values = normed(kv[-1], kv[-1].new_ones(heads.values), op.eps) if op.norm_values else kv[-1]
        run.kv.store(op.cache, run.step, prepared(kv[0], op.k_norm), values)
    q = prepared(q, op.q_norm)
    q = run.numbers.bf16(q if op.rope is None else scaled(run, q, op.rope))
    room = padded(heads.dim) - heads.dim
    run.put(op.q, torch.nn.functional.pad(q, (0, room)).flatten(1))


def rotated(run: Run, x: torch.Tensor, rope: Rope, rows: torch.Tensor | None = None) -> torch.Tensor:
    """Return the step's tokens [tokens, heads, dimensions] with their pairs of dimensions rotated: by the tables of
    `rope`, or by `rows` of cosines and sines."""
    if rows is None:
        cos, sin = run.weights.values(rope)[:, run.step.positions, None]
        half, distance = cos.shape[-1], run.weights.distance(rope)
    else:
        cos, sin = rows.unflatten(1, (2, -1)).transpose(0, 1)[:, :, None]
        half = distance = cos.shape[-1]
    first, second = x[..., :half], x[..., distance : distance + half]
    between, rest = x[..., half:distance], x[..., distance + half :]
    return torch.cat([first * cos - second * sin, between, second * cos + first * sin, rest], dim=-1)


def scaled(run: Run, q: torch.Tensor, rope: Rope) -> torch.Tensor:
    """Return the queries of the step's tokens [tokens, heads, dimensions] times the factors of their positions."""
    factors = run.weights.query_scale(rope)
    return q if factors is None else q * factors[run.step.positions, None, None]


@dataclass(frozen=True)
class Softmax:
    """The mapping of scores to weights: a factor, a cap (0: none), and one logit without a value per head."""

    scale: float
    softcap: float = 0.0
    sinks: torch.Tensor | None = None


def attention(run: Run, op: Attention) -> None:
    """Sequences that the ranks divide are left out."""
    heads, kind = run.heads(op.cache), run.setup.shape.caches[op.cache.kind]
    q = run.get(op.q)
    q = q.reshape(len(q), heads.query, padded(heads.dim))[..., : heads.dim]
    # Query heads of other ranks are zeros, so that all KV heads have the same number.
    q = torch.nn.functional.pad(q, (0, 0, heads.lower, heads.higher))
    sinks = run.optional(op.sinks)
    if sinks is not None:
        sinks = torch.nn.functional.pad(sinks, (heads.lower, heads.higher))
    out = q.new_zeros(len(q), q.shape[1], heads.values)
    how = Softmax(op.scale, op.softcap, sinks)
    for each in run.step.whole if heads.query else ():
        first = kind.window.first_page(each.start)
        sees = seen(each, kind.window)[:, first * PAGE_SIZE :]
        # A row of logits may be of an image, whose later tokens it sees.
        held = run.kv.load(op.cache, replace(each, count=first * PAGE_SIZE + sees.shape[1] - each.start), first)
        keys, values = held[..., : heads.dim], held[..., (0 if heads.is_latent else heads.dim) :][..., : heads.values]
        for begin in range(0, each.count, _ROWS):
            rows = slice(each.row + begin, each.row + min(begin + _ROWS, each.count))
            out[rows], _ = attended(q[rows], keys, values, sees[begin : begin + _ROWS], how)
    own = out[:, heads.lower : heads.lower + heads.query]
    run.put(op.out, run.numbers.bf16(own * op.value_scale).flatten(1))


def seen(sequence: SequenceRows, window: Window = ALL) -> torch.Tensor:
    """[new tokens, positions]: the tokens that each sees."""
    rows = range(sequence.start, sequence.end)
    grids = sequence.slot.init.get("grids", []) if window.images else []
    first = torch.tensor([window.first(row) for row in rows])[:, None]
    end = torch.tensor([max(window.end(row, sequence.end), image_end(grids, row)) for row in rows])[:, None]
    columns = torch.arange(int(end.max()))[None]
    return (columns >= first) & (columns < end)


def attended(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, sees: torch.Tensor, how: Softmax
) -> tuple[torch.Tensor, torch.Tensor]:
    """q [tokens, heads, dimensions] over keys and values [kv heads, positions, dimensions]; consecutive heads share
    keys. The weighted values [tokens, heads, dimensions] and the logarithms of the sums of weights [tokens, heads]."""
    grouped = q.unflatten(1, (keys.shape[0], -1))
    scores = torch.einsum("tkgd,ksd->tkgs", grouped, keys).flatten(1, 2) * how.scale
    if how.softcap > 0:
        scores = torch.tanh(scores / how.softcap) * how.softcap
    scores = scores.masked_fill(~sees[:, None], -torch.inf)
    if how.sinks is not None:
        scores = torch.cat([scores, how.sinks[None, :, None].expand(len(q), -1, 1)], dim=-1)
    total = torch.logsumexp(scores, dim=-1)
    none = total == -torch.inf  # rows that see nothing have no weights
    weights = torch.exp(scores - total.masked_fill(none, 0.0)[..., None])[..., : keys.shape[1]]
    return torch.einsum("tkgs,ksd->tkgd", weights.unflatten(1, grouped.shape[1:3]), values).flatten(1, 2), total
