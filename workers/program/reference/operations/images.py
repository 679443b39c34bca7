"""Operations of image input."""

import torch
from numaserve.workers.program.ops.images import EmbedTaps, MergeRows, PlaceRows, RotaryRows
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
    blocks = op.side // op.factor
    rows = run.get(op.x)
    tiles = rows[: len(rows) - op.extra].unflatten(0, (-1, blocks, op.factor, blocks, op.factor))
    run.put(op.out, tiles.permute(0, 1, 3, 2, 4, 5).flatten(3).flatten(0, 2))
    if run.step.merged == 1:  # a program may merge several rows of each patch
        run.step = run.step.merged_rows(op.merged)
