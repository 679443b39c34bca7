"""Operations of image input."""

import torch
from numaserve.workers.program.ops.images import (
    Clamp,
    EmbedTaps,
    MeanRows,
    MergeRows,
    Merging,
    PlaceRows,
    RotaryRows,
)
from numaserve.workers.program.reference.run import Run


def place_rows(run: Run, op: PlaceRows) -> None:
    """Rows of the pool in place of those that the plan names, or added to them."""
    features = run.step.features
    if features:
        residual = run.get(op.residual).clone()
        rows = run.get(op.pool)[[*features.values()]].to(residual.dtype)
        residual[[*features]] = residual[[*features]] + rows if op.add else rows
        run.put(op.residual, residual)


def rotary_rows(run: Run, op: RotaryRows) -> None:
    """The cosines of each pair, then the sines, at the index that the pair has."""
    found = {axis: run.step.indices(axis) for axis in set(op.axes)}
    indices = torch.tensor([found[axis] for axis in op.axes]).T
    pairs = torch.arange(len(op.axes))
    run.put(op.out, torch.cat([table[indices, pairs] for table in run.weights.values(op.rope)], dim=1))


def embed_taps(run: Run, op: EmbedTaps) -> None:
    """The rows that this rank has, by their weights, one tap after the other."""
    table, given = run.weights.values(op.table), run.get(op.weights)
    numbers = given[:, : op.taps].float().view(torch.int32).long() - op.first_row
    mine = (numbers >= 0) & (numbers < len(table))
    weights = torch.where(mine, given[:, op.taps :], 0.0)
    total = run.get(op.out)
    for tap in range(op.taps):
        total = total + table[numbers[:, tap].clamp(0, len(table) - 1)] * weights[:, tap, None]
    run.put(op.out, total)


def merge_rows(run: Run, op: MergeRows) -> None:
    """The patches of each block next to each other; what follows sees a step of blocks."""
    rows = run.get(op.x)
    run.put(op.out, _in_blocks(rows[: len(rows) - op.extra], op).flatten(1))
    _pass_blocks(run, op)


def mean_rows(run: Run, op: MeanRows) -> None:
    """The mean of the patches of each block, shifted and weighted; what follows sees a step of blocks."""
    mean = _in_blocks(run.get(op.x), op).mean(dim=1)
    shift, weight = run.optional(op.shift), run.optional(op.weight)
    mean = mean if shift is None else mean - shift
    mean = mean if weight is None else mean * weight
    run.put(op.out, mean * (mean.pow(2).mean(-1, keepdim=True) + op.eps).rsqrt() if op.eps else mean)
    _pass_blocks(run, op)


def clamp(run: Run, op: Clamp) -> None:
    """Values between the bounds, rounded to bf16 as the input is."""
    low, high = run.weights.values(op.bounds)
    values = run.get(op.x).clamp(low, high)
    run.put(op.out, run.numbers.bf16(values) if op.rounded else values)


def _in_blocks(x: torch.Tensor, op: Merging) -> torch.Tensor:
    """Return the rows of patches by blocks: [blocks, patches of a block, columns]."""
    blocks = op.side // op.factor
    tiles = x.unflatten(0, (-1, blocks, op.factor, blocks, op.factor))
    return tiles.permute(0, 1, 3, 2, 4, 5).flatten(3, 4).flatten(0, 2)


def _pass_blocks(run: Run, op: Merging) -> None:
    if run.step.merged == 1:  # a program may merge several rows of each patch
        run.step = run.step.merged_rows(op.merged)
