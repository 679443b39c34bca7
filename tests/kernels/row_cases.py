"""Cases of operations that take each row for itself, and of the vectors of sequences."""

from itertools import product

import kernel_reference as reference
import numpy as np
from kernel_ops import packed
from kernel_reference import BF16, FP32, from_bf16, in_bf16, to_bf16
from numaserve.kernels import Vector
from numaserve.workers.program.buffers import Buffer, Operand, Residual, Tensor
from numaserve.workers.program.ops.recurrent import KeyDecays
from numaserve.workers.program.ops.rows import LayerNorm, Multiply, Pooling
from numaserve.workers.program.ops.streams import LayerInputs
from numaserve.workers.program.recording.builder import ProgramBuilder
from numaserve.workers.program.slots import END_POOL
from one_operation import Case, normal, table

Rng = np.random.Generator
SIZES = [(1, 16), (1, 5), (2, 33), (3, 576), (7, 100), (4, 2048), (40, 130)]
EPS = 1e-5


def rms_norm(rng: Rng, rows: int, cols: int) -> Case:
    x, weight = 30 * normal(rng, rows, cols), normal(rng, cols)
    x[1:2] = 0
    return Case(
        given={"x": x},
        record=lambda b, x: b.rms_norm(x, Vector(weight), EPS),
        expected=[in_bf16(reference.rms_norm(x, weight, EPS))],
    )


def rounded(rng: Rng, rows: int, cols: int) -> Case:
    x = 30 * normal(rng, rows, cols)
    x.view(np.uint32)[:, ::3] = x.view(np.uint32)[:, ::3] & 0xFFFF0000 | 0x8000  # halfway between two of bf16
    return Case(given={"x": x}, record=lambda b, x: b.rounded(x), expected=[(from_bf16(to_bf16(x)), 0.0)])


def norm_in_int8(rng: Rng, rows: int, cols: int, group: int, weighted: bool) -> Case:
    """Some columns of a norm, or of what is only rounded, that a product reads in int8."""
    x, weight = normal(rng, rows, cols), normal(rng, cols) if weighted else None
    chosen = rng.permutation(cols)[:40]
    how = {"weights": "int8_group" if group else "int8", "group": group, "activations": "int8"}
    picks = packed(to_bf16(np.eye(cols)[chosen]), **how)
    value, bound = in_bf16((x, 0.0) if weight is None else reference.rms_norm(x, weight, EPS))
    groups = np.pad(np.abs(value), [(0, 0), (0, -cols % (group or cols))]).reshape(rows, -1, group or cols)
    step = np.repeat(groups.max(2) / 127, group or cols, axis=1)[:, :cols]
    value, bound = (each[:, chosen] for each in (value, bound + (0.5 + 2 * BF16) * step))
    held = picks.to_numpy()[np.arange(len(chosen)), chosen]

    def record(b: ProgramBuilder, x: Tensor) -> Buffer:
        normed = b.rounded(x) if weight is None else b.rms_norm(x, Vector(weight), EPS)
        return b.linear(normed, picks)

    return Case(given={"x": x}, record=record, expected=[(value * held, bound * held + 8 * FP32 * np.abs(value))])


def layer_norm(rng: Rng, rows: int, cols: int, biased: bool, offset: float = 0.0) -> Case:
    """Where the rows were, and in bf16. With an `offset`, the mean alone rounds, by half a unit of its last place."""
    x = 10 * normal(rng, rows, cols) + np.float32(5 + offset)
    weight, bias = normal(rng, cols), normal(rng, cols) if biased else None
    value, bound = reference.layer_norm(x - np.float32(offset), weight, bias, EPS)
    exact = value, bound + np.spacing(np.float32(offset)) * np.abs(weight)
    vectors = {"weight": Vector(weight), "bias": None if bias is None else Vector(bias), "eps": EPS}

    def record(b: ProgramBuilder, x: Residual) -> tuple[Buffer, ...]:
        made = b.layer_norm(x, **vectors)
        apart = Tensor(x.rows, x.cols, 4)
        b.operations.append(LayerNorm(x=x, out=apart, **vectors))
        b.normalize(x, **vectors)
        return x, apart, made

    return Case(given={"x": x}, record=record, expected=[exact, exact, in_bf16(exact)], rounds=True)


def multiply(rng: Rng, rows: int, cols: int, name: str, alone: bool) -> Case:
    """The product of rows, one of them with an activation, and with a NaN in its place."""
    given = {"y": 4 * normal(rng, rows, cols)} | ({} if alone else {"x": normal(rng, rows, cols)})
    if rows > 2:
        given["y"][1, cols // 2 : cols // 2 + 1] = np.nan
    wide, x = given["y"].astype(np.float64), given.get("x", np.float32(1))
    value = x * reference.activation(name, wide)
    # GELU of a negative number is a difference of numbers near one, and so is tanh of a small one.
    near_one = 8 * FP32 * np.abs(wide * x) + 4 * FP32 * (name == "tanh") + 2.0**-126
    exact = value, FP32 * np.abs(value) if name == "none" else 16 * FP32 * np.abs(value) + near_one

    def record(b: ProgramBuilder, y: Tensor, x: Tensor | None = None) -> tuple[Buffer, ...]:
        outs = Tensor(y.rows, y.cols, 4), Operand(y.rows, y.cols, 2)
        b.operations += [Multiply(x=x, y=y, out=out, activation=name) for out in outs]
        return outs

    return Case(given=given, record=record, expected=[exact, in_bf16(exact)], rounds=True)


def embed(rng: Rng, rows: int, hidden: int) -> Case:
    """Scaled rows of a table, and the same rows added to those that are there; no rows for tokens of other ranks."""
    held, first, scale = to_bf16(normal(rng, rows, hidden)), 100, np.float32(np.sqrt(hidden))
    tokens = [99, 100, 99 + rows, 100 + rows, 0, *(100 + rng.integers(0, rows, 30)).tolist()]
    before = normal(rng, len(tokens), hidden)
    own = np.zeros_like(before)
    for row, token in enumerate(tokens):
        if token - first in range(rows):
            own[row] = from_bf16(held[token - first])

    def record(b: ProgramBuilder, before: Buffer) -> tuple[Buffer, ...]:
        b.add_rows(before, packed(held), index="token", first_row=first)
        return b.embed(packed(held), first_row=first, scale=scale), before

    exact = own * scale, before + own
    return Case(given={"before": before}, tokens=tokens, record=record, expected=[(each, 0.0) for each in exact])


def layer_inputs(rng: Rng, groups: int, width: int) -> Case:
    """The norm of each layer's columns plus its columns of a row; the last two tokens have no row."""
    cols, tokens = groups * width, [3, 0, 16, 40, 99]
    x, weight, rows = 3 * normal(rng, 5, cols), normal(rng, width), to_bf16(normal(rng, 40, cols))
    norms, bound = reference.rms_norm(x.reshape(5, groups, width), weight, EPS)
    added = np.zeros((5, cols))
    added[:3] = from_bf16(rows[tokens[:3]]) * np.float64(2.5)
    value = norms.reshape(5, cols) + added
    bound = bound.reshape(5, cols) + 3 * FP32 * (np.abs(value - added) + np.abs(added))

    def record(b: ProgramBuilder, x: Tensor) -> Buffer:
        out = Tensor(x.rows, cols, 4)
        how = {"weight": Vector(weight), "eps": EPS, "table": packed(rows), "scale": 2.5}
        b.operations.append(LayerInputs(x=x, out=out, **how))
        return out

    return Case(given={"x": x}, tokens=tokens, record=record, expected=[(value, bound)])


def add_norm(rng: Rng, rows: int, cols: int) -> Case:
    """A stream, plus the norm of rows, times a factor."""
    x, stream, weight = normal(rng, rows, cols), normal(rng, rows, cols), normal(rng, cols)
    value, bound = reference.rms_norm(x, weight, EPS)

    def record(b: ProgramBuilder, x: Residual, stream: Residual) -> Buffer:
        b.add_norm(stream, x, Vector(weight), EPS, scale=Vector(np.array([0.75], np.float32)))
        return stream

    exact = 0.75 * (stream + value), 0.75 * bound + 2 * FP32 * np.abs(stream + value)
    return Case(given={"x": x, "stream": stream}, record=record, expected=[exact])


def group_norm(rng: Rng, rows: int, groups: int, width: int) -> Case:
    x, weights = 5 * normal(rng, rows, groups * width), normal(rng, groups, width)
    parts = reference.rms_norm(x.reshape(rows, groups, width), weights, EPS)
    return Case(
        given={"x": x},
        record=lambda b, x: b.group_norm(x, [Vector(each) for each in weights], EPS),
        expected=[in_bf16((parts[0].reshape(rows, -1), parts[1].reshape(rows, -1)))],
    )


def gated_head_norm(rng: Rng, rows: int, heads: int, dim: int, by: str) -> Case:
    x, gate, weight = 5 * normal(rng, rows, heads * dim), 5 * normal(rng, rows, heads * dim), normal(rng, dim)
    wide, by_head = gate.astype(np.float64), x.reshape(rows, heads, dim)
    norms, bounds = (each.reshape(rows, -1) for each in reference.rms_norm(by_head, weight, EPS))
    factor = (wide if by == "silu" else 1.0) / (1 + np.exp(-wide))
    return Case(
        given={"x": x, "gate": gate},
        record=lambda b, x, gate: b.gated_head_norm(x, gate, Vector(weight), eps=EPS, heads=heads, by=by),
        expected=[in_bf16((norms * factor, (bounds + 8 * FP32 * np.abs(norms)) * np.abs(factor) + 1e-38))],
    )


def sigmoid_gate(rng: Rng, rows: int, cols: int) -> Case:
    """Rows in bf16 times the sigmoids of ordinary, and of very large and small numbers."""
    x, gate = normal(rng, rows, cols), 30 * normal(rng, rows, cols)
    gate[:1, :4] = np.array([-1e30, -200.0, 200.0, 1e30])[:cols]
    with np.errstate(over="ignore"):
        value = from_bf16(to_bf16(x)) / (1 + np.exp(-gate.astype(np.float64)))

    def record(b: ProgramBuilder, x: Tensor, gate: Tensor) -> Buffer:
        b.sigmoid_gate(made := b.rounded(x), gate)
        return made

    bound = 8 * FP32 * np.abs(value) + 2.0**-126
    return Case(given={"x": x, "gate": gate}, record=record, expected=[in_bf16((value, bound))])


def key_decays(rng: Rng, heads: int, dim: int) -> Case:
    """Rates as they are, then the decays of each dimension of keys."""
    rates, x = 20 * normal(rng, 5, heads), 20 * normal(rng, 5, heads * dim)
    decay, bias = -np.exp(normal(rng, heads)), normal(rng, heads * dim)
    exponents = decay.astype(np.float64).repeat(dim) * np.logaddexp(0, x.astype(np.float64) + bias)
    value = np.exp(exponents)
    bound = value * (1 + np.abs(exponents)) * 16 * FP32 + 1e-37

    def record(b: ProgramBuilder, rates: Tensor, x: Tensor) -> Buffer:
        out = Tensor(x.rows, heads * (1 + dim), 4)
        b.operations.append(KeyDecays(b=rates, x=x, out=out, decay=Vector(decay), bias=Vector(bias)))
        return out

    exact = np.hstack([rates, value]), np.hstack([np.zeros_like(rates), bound])
    return Case(given={"rates": rates, "x": x}, record=record, expected=[exact])


POOLINGS = {
    "last": lambda rows: rows[-1],
    "cls": lambda rows: rows[0],
    "mean": lambda rows: rows.mean(0),
    "max": lambda rows: rows.max(0),
}


def pool(rng: Rng, pooling: Pooling, normalised: bool, cols: int) -> Case:
    lengths = (1, 7, 2, 30)
    x, weight = 30 * normal(rng, sum(lengths), cols), normal(rng, cols)
    rows, bounds = reference.rms_norm(x, weight, EPS) if normalised else (x.astype(np.float64), np.zeros(x.shape))
    parts = [(np.split(each, np.cumsum(lengths)[:-1])) for each in (rows, bounds)]
    value = np.stack([POOLINGS[pooling](part) for part in parts[0]])
    # A sum of at most 30 rows, and the error of each row.
    bound = np.stack([most.max(0) + 32 * FP32 * np.abs(part).max(0) for part, most in zip(*parts, strict=True)])
    how = (Vector(weight), EPS) if normalised else ()
    return Case(
        given={"x": x},
        lengths=lengths,
        end=END_POOL,
        pools=True,
        record=lambda b, x: b.pool(x, pooling, *how),
        expected=[(value, bound)],
    )


CASES = (
    table(rms_norm, *SIZES)
    | table(rounded, *SIZES)
    | table(norm_in_int8, *((*size, group, group != 64) for size in SIZES[1:] for group in (0, 32, 64, 128)))
    | table(layer_norm, *((*size, biased) for size in SIZES for biased in (False, True)), (4, 768, True, 2.0**14))
    | table(multiply, *((rows, cols, "none", False) for rows, cols in ((1, 0), (7, 1), (1, 16), (7, 33), (1, 128))))
    | table(
        multiply,
        *((rows, cols, name, False) for name in ("silu", "gelu_tanh") for rows, cols in ((7, 1), (1, 33), (7, 128))),
        *((rows, cols, name, True) for name in ("tanh", "relu", "gelu") for rows, cols in ((7, 1), (1, 33), (7, 128))),
    )
    | table(embed, (16, 32), (100, 576), (33, 50), (48, 64))
    | table(layer_inputs, (1, 32), (5, 256), (3, 38))
    | table(add_norm, (1, 16), (3, 77), (2, 576))
    | table(group_norm, (3, 2, 32), (1, 5, 64))
    | table(
        gated_head_norm,
        *((rows, *heads, "silu") for heads in ((3, 128), (2, 16), (5, 24), (3, 7), (1, 1), (0, 16)) for rows in (1, 6)),
        (6, 3, 40, "sigmoid"),
        (1, 3, 7, "sigmoid"),
    )
    | table(sigmoid_gate, (7, 1), (1, 16), (7, 33), (3, 128))
    | table(key_decays, (3, 128), (2, 16), (5, 24), (3, 7), (1, 1), (0, 16))
    | table(pool, *product(POOLINGS, (False, True), (1, 48, 576, 1000)))
)
