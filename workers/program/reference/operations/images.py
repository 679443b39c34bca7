"""Operations of image input."""

from numaserve.workers.program.ops.images import MergeRows, PlaceRows
from numaserve.workers.program.reference.run import Run


def place_rows(run: Run, op: PlaceRows) -> None:
    """Rows of the pool in place of those that the plan names."""
    features = run.step.features
    if features:
        residual = run.get(op.residual).clone()
        residual[[*features]] = run.get(op.pool)[[*features.values()]].to(residual.dtype)
        run.put(op.residual, residual)


def merge_rows(run: Run, op: MergeRows) -> None:
    """The patches of each block next to each other; what follows sees a step of blocks."""
    blocks = op.side // op.factor
    tiles = run.get(op.x).unflatten(0, (-1, blocks, op.factor, blocks, op.factor))
    run.put(op.out, tiles.permute(0, 1, 3, 2, 4, 5).flatten(3).flatten(0, 2))
    run.step = run.step.merged_rows(op.merged)
