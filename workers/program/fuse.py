"""Rewrites of a list of operations to what kernels do at once. Each pass is a function of its own."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from numaserve.workers.program.buffers import Buffer, Quantized
from numaserve.workers.program.ops.attention import Attention, RopeStore
from numaserve.workers.program.ops.base import Operation
from numaserve.workers.program.ops.exchange import Reduce
from numaserve.workers.program.ops.experts import CombineExperts
from numaserve.workers.program.ops.products import HeadLinear, Linear
from numaserve.workers.program.ops.recurrent import GatedHeadNorm, SigmoidGate
from numaserve.workers.program.ops.rows import Embed, Quantize, RmsNorm
from numaserve.workers.program.setup import Ranks


def fuse(operations: Sequence[Operation], ranks: Ranks) -> list[Operation]:
    """The operations after all passes."""
    fused = without_sums(operations) if ranks.world == 1 else list(operations)
    return joined(with_lone_readers(with_norms_in_int8(fused)), ranks)


def without_sums(operations: Sequence[Operation]) -> list[Operation]:
    """With one rank a sum over ranks is its only part: what makes that adds it to the residual stream itself.

    A sum that has a norm after it stays: the norm needs all of it.
    """
    made_by = {buffer: index for index, operation in enumerate(operations) for buffer in operation.writes}
    found: list[Operation | None] = list(operations)
    for index, operation in enumerate(operations):
        if not isinstance(operation, Reduce):
            continue
        maker = made_by[operation.partial]
        if _touched(operations[maker + 1 : index], operation.partial, operation.residual):
            continue
        direct = _direct(operations[maker], operation)
        if direct is not None:
            found[maker], found[index] = direct, None
    return [operation for operation in found if operation is not None]


def _touched(operations: Sequence[Operation], *buffers: Buffer) -> bool:
    return any(buffer in operation.buffers for operation in operations for buffer in buffers)


def _direct(maker: Operation, total: Reduce) -> Operation | None:
    """`maker` with the residual stream in place of its part of the sum; None: it cannot."""
    if total.post_norm is not None:
        return None
    match maker:
        case Embed(accumulate=False) if total.assign and total.bias is None:
            return replace(maker, out=total.residual)
        case Linear(bias=None, activation="none"):
            return replace(maker, out=total.residual, bias=total.bias, accumulate=not total.assign)
        case CombineExperts() if not total.assign and total.bias is None:
            return replace(maker, out=total.residual, accumulate=True)
        case _:
            return None


def with_norms_in_int8(operations: Sequence[Operation]) -> list[Operation]:
    """A norm's result that is quantized after it is written in int8 by the norm, in the first of the layouts wanted."""
    norms = {each.out for each in operations if isinstance(each, RmsNorm) and each.quantized is None}
    first: dict[Buffer, Quantized] = {}
    for each in operations:
        if isinstance(each, Quantize) and each.x in norms and not each.logits:
            first.setdefault(each.x, each.out)
    made = set(first.values())
    return [
        replace(each, quantized=first.get(each.out)) if isinstance(each, RmsNorm) and each.out in norms else each
        for each in operations
        if not (isinstance(each, Quantize) and each.out in made)
    ]


def with_lone_readers(operations: Sequence[Operation]) -> list[Operation]:
    """Mark products that alone read the rows that the operation before them makes. Some instruction sets then write
    these rows in the order in which the product reads them."""
    readers = Counter(buffer.whole for operation in operations for buffer in operation.reads)
    found = list(operations)
    for index, operation in enumerate(operations):
        match operation:
            case Linear(logits=False, widened=False):
                if _is_made_alone(operation, operations[max(index - 2, 0) : index], readers):
                    found[index] = replace(operation, reads_alone=True)
    return found


def _is_made_alone(product: Linear, before: Sequence[Operation], readers: Mapping[Buffer, int]) -> bool:
    """Whether only `product` reads its rows, which the last operation `before` makes, or attention and a gate."""
    x, weights = product.x, product.weight.format
    match before:
        case [Attention() as attention, SigmoidGate() as gate] if gate.x is x:
            return x is _made_for(weights, attention) and readers[x.whole] == 2
        case [*_, maker]:
            return x is _made_for(weights, maker) and readers[x.whole] == 1
        case _:
            return False


def _made_for(weights: str, operation: Operation) -> Buffer | None:
    """The whole rows, of all tokens, that an operation makes for a product with `weights`."""
    match weights, operation:
        case "bf16", RmsNorm(quantized=None) if operation.out.whole is operation.out:
            return operation.out
        case "bf16", Linear(logits=False) if operation.activation != "none":
            return operation.out
        case "bf16", GatedHeadNorm() | Attention() | HeadLinear():
            narrow = isinstance(operation, GatedHeadNorm) and operation.weight.size % 16 != 0
            return None if narrow else operation.out
        case "int8", Quantize(rows_per_token=1, logits=False):
            return operation.out
        case "int8", RmsNorm():
            return operation.quantized
        case _:
            return None


def joined(operations: Sequence[Operation], ranks: Ranks) -> list[Operation]:
    """Let operations do the work of the operation before them, if no other operation reads its result."""
    readers = Counter(buffer.whole for operation in operations for buffer in operation.reads)
    found = list(operations)
    for index, (before, operation) in enumerate(pairwise(operations), start=1):
        match before, operation:
            case RmsNorm() | Quantize(rows_per_token=1, logits=False), Linear(logits=False) if (
                operation.x in before.writes
            ):
                mine = sum(readers[buffer.whole] for buffer in before.writes) == 1
            case RopeStore(), Attention() if operation.q is before.q and operation.cache == before.cache:
                mine = readers[before.q] == 1
            case Linear(logits=False), Reduce() if ranks.overlaps_sums and operation.partial in before.writes:
                mine = readers[operation.partial] == 1
            case _:
                continue
        if mine and not set(before.reads) & set(operation.writes):
            found[index] = replace(operation, before=before)
    return found
