"""The native operations on arrays of any shape: pads what goes in, allocates what comes out, cuts the padding off."""

from collections.abc import Sequence

import numaserve_kernel_tests as ops
import numpy as np
from kernel_reference import F32, U16, from_bf16
from numaserve.kernels import PackedMatrix, Team
from numaserve.workers.interface.protocol import SamplingParams, TokenLogprobs
from numaserve.workers.interface.settings import ActivationDtype
from numaserve.workers.program.given import GivenMatrix
from numpy.typing import NDArray

PAD = 32
ONE_THREAD = Team([-1])
# Bytes of the first and second level. `copied_pairs` and `row_block` of the native `gemm` may follow.
CACHES = (32 << 10, 1 << 20)
GARBAGE = np.uint16(0x7FC0)  # NaN: padding that a kernel must not read is filled with it


def padded(count: int) -> int:
    """`count` rounded up to what rows and columns are padded to."""
    return -(-count // PAD) * PAD


def pad_columns(x: NDArray, columns: int | None = None) -> NDArray:
    """x with zero columns added."""
    return np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, (columns or padded(x.shape[-1])) - x.shape[-1])])


def filled(shape: tuple[int, int], value: np.uint16 | float) -> NDArray:
    """An array of `value`, on a cache line like the buffers of a Program: some results are written in whole lines."""
    dtype = np.dtype(np.uint16 if isinstance(value, np.uint16) else np.float32)
    count = shape[0] * shape[1]
    memory = np.empty(count * dtype.itemsize + 64, np.uint8)
    first = -memory.ctypes.data % 64
    out = memory[first : first + count * dtype.itemsize].view(dtype).reshape(shape)
    out[:] = value
    return out


def packed(*parts: U16, weights: str = "bf16", group: int = 0, activations: ActivationDtype = "bf16") -> PackedMatrix:
    """Parts [rows, k] in the format `weights`; of several, which have a multiple of 16 rows, the panels in turn."""
    n, k = sum(len(part) for part in parts), parts[0].shape[1]
    matrix = GivenMatrix(n, k, weights, group)
    matrix.activations = activations
    for index, part in enumerate(parts):
        data = np.ascontiguousarray(part).view(np.uint8).reshape(-1)
        rows = np.arange(len(part), dtype=np.int32)
        matrix.pack(ONE_THREAD, data, "bf16", k, rows, 0, panel_stride=len(parts), panel_offset=index)
    return matrix


def multiply(
    isa: str,
    a: U16,
    weight: PackedMatrix,
    bias: F32 | None = None,
    *,
    bf16: bool = False,
    threads: int = 1,
    widened: bool = False,
    onto: F32 | None = None,
    in_parts: bool = False,
    caches: tuple[int, ...] = CACHES,
    tiled: bool = False,
) -> F32 | U16:
    """a [m, k] times a packed weight [n, k] transposed: [m, n] in fp32, or the bits of bf16. `widened`: codes to bf16,
    and a as it is. The result is added `onto` an array, where there is one. `in_parts`: threads divide k too. `tiled`:
    rows of int8 are in the order of tiles."""
    m, n = a.shape[0], weight.n
    rows = np.full((padded(m), padded(a.shape[1])), GARBAGE)
    rows[:m] = pad_columns(a)
    out = filled((m, padded(n)), GARBAGE if bf16 else np.nan)
    if onto is not None:
        out = pad_columns(onto)
    wide_bias = None if bias is None else pad_columns(bias)
    outputs = (None, out) if bf16 else (out, None)
    options = (0.0, widened, onto is not None, in_parts, threads)
    ops.gemm(isa, rows, m, weight, wide_bias, "none", *outputs, *options, *caches, tiled_rows=tiled)
    return out[:, :n]


def gemm(
    isa: str,
    a: U16,
    b: U16,
    bias: F32 | None = None,
    *,
    bf16: bool = False,
    threads: int = 1,
    weights: str = "bf16",
    group: int = 0,
) -> F32 | U16:
    """a [m, k] times b [n, k] transposed, packed in the format `weights`: [m, n] in fp32, or the bits of bf16."""
    return multiply(isa, a, packed(b, weights=weights, group=group), bias, bf16=bf16, threads=threads)


def gated(
    isa: str,
    a: U16,
    gate: U16,
    up: U16,
    activation: str,
    threads: int = 1,
    weights: str = "bf16",
    group: int = 0,
    *,
    biases: tuple[F32, F32] | None = None,
    limit: float = 0.0,
    caches: tuple[int, ...] = CACHES,
    tiled: bool = False,
) -> U16:
    """activation(a gateᵀ) * (a upᵀ) in bf16; gate and up have a multiple of 16 rows. `biases` [rows] of both are added
    before, `limit` is that of swiglu_oai. `tiled`: all padded rows and columns, in the order of tiles."""
    m, n = a.shape[0], gate.shape[0]
    rows = np.full((padded(m), padded(a.shape[1])), GARBAGE)
    rows[:m] = pad_columns(a)
    out = filled((padded(m) if tiled else m, padded(n)), GARBAGE)
    weight = packed(gate, up, weights=weights, group=group)
    bias = None
    if biases is not None:
        bias = pad_columns(np.stack([each.reshape(-1, 16) for each in biases], axis=1).reshape(-1))
    order = {"tiled_results": tiled}
    ops.gemm(isa, rows, m, weight, bias, activation, None, out, limit, False, False, False, threads, *caches, **order)
    return out if tiled else out[:, :n]


def ungated(isa: str, a: U16, b: U16, activation: str, bias: F32 | None = None, threads: int = 1) -> U16:
    """activation(a bᵀ + bias) in bf16, of an activation that gates nothing."""
    m, n = a.shape[0], b.shape[0]
    rows = np.full((padded(m), padded(a.shape[1])), GARBAGE)
    rows[:m] = pad_columns(a)
    out = np.full((m, padded(n)), GARBAGE)
    added = None if bias is None else pad_columns(bias)
    ops.gemm(isa, rows, m, packed(b), added, activation, None, out, 0.0, False, False, False, threads, *CACHES)
    return out[:, :n]


def divided_norm(
    isa: str, ranks: list[tuple[range, range]], values: list[F32], weights: list[F32], eps: float, threads: int = 1
) -> list[list[F32]]:
    """The norms of vectors [rows, columns] on each rank, which has some columns of each vector.

    Columns that several ranks have, the first ones of the later ranks, count on the first of these ranks. What follows
    the vectors in a row must stay as it is.
    """
    rows, world = len(values[0]), len(ranks)
    columns = [[len(each) for each in own] for own in ranks]
    x = np.full((world, rows, max(map(sum, columns)) + 3), 7.0, np.float32)
    wide = np.zeros((world, len(values), max(1, *(count for own in columns for count in own))), np.float32)
    counted = [
        [len(set(each).difference(*(ranks[below][index] for below in range(rank)))) for index, each in enumerate(own)]
        for rank, own in enumerate(ranks)
    ]
    for rank, own in enumerate(ranks):
        x[rank, :, : sum(columns[rank])] = np.concatenate(
            [v[:, each] for v, each in zip(values, own, strict=True)], axis=1
        )
        for index, each in enumerate(own):
            wide[rank, index, : len(each)] = weights[index][each]
    ops.divided_norm(isa, x, columns, counted, [each.shape[1] for each in values], wide, eps, threads)
    found = []
    for rank, own in enumerate(columns):
        *parts, rest = np.split(x[rank], np.cumsum(own), axis=1)
        assert (rest == 7.0).all()
        found.append(parts)
    return found


def rms_norm_quantized(
    isa: str, x: F32, weight: F32 | None, eps: float, *, group: int, fused: bool, threads: int = 1
) -> tuple[U16, NDArray[np.int8]]:
    """Normalised rows, and the same in int8, with a scale for each row or `group` of columns; in one pass or two."""
    rows, cols = x.shape
    out = np.full((rows, padded(cols)), GARBAGE)
    codes = np.full((rows, 8 * padded(cols) + 64), 99, np.int8)
    ops.rms_norm(isa, pad_columns(x), cols, weight, eps, out, codes, group, fused, threads)
    return out, codes


def add_reduced(
    isa: str,
    residual: F32,
    parts: F32,
    *,
    bias: F32 | None = None,
    post_norm: F32 | None = None,
    eps: float = 0.0,
    assign: bool = False,
    scale: float = 1.0,
    threads: int = 1,
) -> F32:
    """residual [rows, cols] plus the sum of parts [parts, rows, cols]."""
    out = pad_columns(residual)
    ops.add_reduced(isa, pad_columns(parts), out, residual.shape[1], bias, post_norm, eps, assign, scale, threads)
    return out[:, : residual.shape[1]]


def sample(
    isa: str, logits: F32, params: SamplingParams, position: int, prompt: Sequence[int] = (), output: Sequence[int] = ()
) -> TokenLogprobs:
    """Samples the token of `position`; its logprob is 0 where params want none."""
    return sampled_row(isa, logits, params, position, prompt, output)[0]


def sampled_row(
    isa: str,
    logits: F32,
    params: SamplingParams,
    position: int,
    prompt: Sequence[int] = (),
    output: Sequence[int] = (),
    mask: NDArray[np.uint32] | None = None,
    *,
    drafts: Sequence[int] = (),
    parts: int = 1,
) -> tuple[TokenLogprobs, bool, list[float]]:
    """The sample of `position`, whether it is dropped, log-probabilities of the tokens that params name. `drafts`: more
    of the output, not in the counts; `parts`: threads that share the row's blocks."""
    counts = (
        [np.bincount(np.array(h, np.int64), minlength=len(logits)).astype(np.int32) for h in (prompt, output)]
        if params.has_penalties
        else [None, None]
    )
    row, dropped, named = ops.sample(
        isa,
        logits,
        position,
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        seed=params.seed,
        bias_ids=list(params.logit_bias),
        bias_values=list(params.logit_bias.values()),
        suppress=params.suppress,
        min_position=params.min_position,
        logprobs=params.logprobs,
        prompt_counts=counts[0],
        output_counts=counts[1],
        mask=mask,
        named=params.token_ids_logprob,
        drafts=list(drafts),
        parts=parts,
    )
    return TokenLogprobs(*row), dropped, named


def token_logprobs(isa: str, logits: F32, token: int, num_top: int) -> TokenLogprobs:
    """Log-probabilities of `token` and of the most likely ones."""
    return TokenLogprobs(*ops.token_logprobs(isa, logits, token, num_top))


def assert_within(result: NDArray, value: NDArray, bound: NDArray | float) -> None:
    """Asserts |result - value| <= bound for each element, and no number where the value is none; result may be the bits
    of bf16."""
    wide, none = widened(result), np.isnan(value)
    np.testing.assert_array_equal(np.isnan(wide), none)
    excess = np.where(none, -np.inf, np.abs(wide - value) - bound)
    if excess.size == 0:
        return
    worst = np.unravel_index(np.argmax(excess), excess.shape)
    assert excess[worst] <= 0, (
        f"{wide[worst]} instead of {value[worst]} at {worst}: {excess[worst]:.3g} beyond the bound"
    )


def widened(x: NDArray) -> NDArray[np.float64]:
    """x, which may be the bits of bf16, in fp64."""
    return (from_bf16(x) if x.dtype == np.uint16 else x).astype(np.float64)
