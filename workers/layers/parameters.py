"""Declarations of a layer's parameters: tensors of a checkpoint, and how matrices and vectors are made of them.

A *source* is a tensor of the checkpoint. A *parameter* is what an operation reads: a packed matrix or a vector, made of
rows of some sources. Ranks have parts of it where it lies along an axis that they divide. With `each` a declaration
stands for one parameter for each unit of that axis (an expert, say), whose number takes the place of `EACH` in the
names of its sources.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt
from numaserve.workers.layers.axes import Axis

Rows = npt.NDArray[np.int32]
# "published": as the checkpoint has it, or as the operator wants it; "head": the same of the output head; "stored": as
# the checkpoint has it, whatever the operator wants; "absorbed": with at least 8 bits in groups, for what latent
# attention absorbs.
Rule = Literal["published", "head", "stored", "absorbed", "bf16"]
Stack = Literal["in order", "turned"]

EACH = "*"


@dataclass(frozen=True)
class Source:
    """A tensor of the checkpoint. Matrices are named by their module, vectors by their whole name.

    `name` is without what checkpoints put before "layers."; `gguf` is its name in GGUF files, likewise without
    ".weight" of matrices. With `stacked` the checkpoint has those of all units of a parameter's `each` in one tensor,
    [units, out features, in features] in order or [units, in features, out features] turned. With `kernel` the in
    features of a matrix have these dimensions in the checkpoint: those of a convolution. A `bare` matrix has the
    module's name there, without ".weight"; a `turned` one has in features first. With `channels_last` those of the
    kernel are in the order of rows, columns and channels there. The rows of a `gridded` one have two dimensions there.
    """

    name: str
    shape: tuple[int, ...]  # of a matrix [out features, in features]
    gguf: str = ""
    quantizable: bool = True
    stacked: Stack | None = None
    kernel: tuple[int, ...] = ()
    bare: bool = False
    turned: bool = False
    channels_last: bool = False
    gridded: bool = False

    @property
    def is_matrix(self) -> bool:
        """Whether it is the weight of a module."""
        return len(self.shape) == 2

    @property
    def saved_shape(self) -> tuple[int, ...]:
        """The shape in the checkpoint."""
        return (self.shape[0], *self.kernel) if self.kernel else self.shape

    @property
    def bias(self) -> Source:
        """The bias of this matrix."""
        gguf = self.gguf and f"{self.gguf}.bias"
        return replace(self, name=f"{self.name}.bias", shape=self.shape[:1], gguf=gguf, kernel=(), channels_last=False)

    def named(self, unit: int) -> str:
        """Its name for one unit of the parameter's `each`."""
        return self.name.replace(EACH, str(unit))


@dataclass(frozen=True)
class Order:
    """Rows of a source, in the order in which kernels read them.

    The source has, from row `first` on, `units` units of `height` rows each. Each unit gives `count` rows, by default
    all, from its row `start` on. The last `pairs` rows lie in pairs in the file, and are taken in halves: the first
    rows of all pairs, then the second rows. Runs of `run` rows take the place of rows there. `rounds` is as for
    `in_groups`, and `pair_rounds` is that of pairs.
    """

    units: int
    height: int = 1
    first: int = 0
    start: int = 0
    count: int | None = None
    pairs: int = 0
    rounds: int = 1
    run: int = 1
    pair_rounds: int = 1

    @property
    def taken(self) -> int:
        """The number of rows that are taken of a unit."""
        return self.height if self.count is None else self.count

    def rows(self) -> Rows:
        """The rows of the source, int32, in that order."""
        within = np.arange(self.start, self.start + self.taken, dtype=np.int32)
        if self.pairs:
            plain, paired = within[: -self.pairs], within[-self.pairs :]
            in_file = paired.reshape(-1, 2, self.run)
            halves = in_file[in_groups(len(in_file), self.pair_rounds)].swapaxes(0, 1)
            within = np.concatenate([plain, halves.reshape(-1)])
        starts = in_groups(self.units, self.rounds) * np.int32(self.height) + np.int32(self.first)
        return (starts[:, None] + within).reshape(-1)


@dataclass(frozen=True)
class Part:
    """Rows of a source that a parameter is made of.

    `axis` divides them among the ranks, `width` of them to a unit; the first of them is of the axis' unit `at`.
    """

    source: Source
    order: Order
    axis: Axis | None = None
    width: int = 1
    at: int = 0


@dataclass(frozen=True)
class Split:
    """The columns of a matrix that go to each rank: `width` of them to a unit of the axis. `rounds` is as for
    `in_groups`."""

    axis: Axis
    width: int = 1
    rounds: int = 1


@dataclass(frozen=True)
class MatrixParameter:
    """A packed matrix.

    Layouts: "below": the parts' rows below each other; "panels": two parts take turns in panels of 16 rows, padded to
    whole tiles; "turned": the transposes of the units of one part, below each other.
    """

    parts: tuple[Part, ...]
    columns: Split | None = None
    layout: Literal["below", "panels", "turned"] = "below"
    rule: Rule = "published"
    each: Axis | None = None
    tied_to: MatrixParameter | None = None  # the one whose matrices it has where both are of one format
    is_router: bool = False

    @property
    def sources(self) -> tuple[Source, ...]:
        """The tensors it is made of."""
        return tuple(part.source for part in self.parts)

    @property
    def source_numbers(self) -> tuple[int, ...]:
        """The number of each part's source among the distinct ones."""
        distinct = list(dict.fromkeys(self.sources))
        return tuple(map(distinct.index, self.sources))

    @property
    def takes_adapters(self) -> bool:
        """Whether low-rank adapters can update its products: those of a matrix in a block that is read as it lies in
        the checkpoint. What attention absorbs is not."""
        return self.each is None and self.rule not in ("head", "absorbed") and not self.is_router


@dataclass(frozen=True)
class VectorParameter:
    """A vector, fp32: the parts after each other, or in panels as the rows of a matrix.

    With `is_log` the checkpoint has the logarithm of every value. `added` is added to the value, and the sum multiplied
    by `factor`. With `each` it has one piece for each unit, padded as the rows of a packed matrix are. With
    `only_first_of` the rank that has the first unit of that axis has it, the others do not. A row of a source with more
    dimensions is as many values.
    """

    parts: tuple[Part, ...]
    layout: Literal["below", "panels"] = "below"
    added: float = 0.0
    factor: float = 1.0
    is_log: bool = False
    each: Axis | None = None
    only_first_of: Axis | None = None

    @property
    def sources(self) -> tuple[Source, ...]:
        """The tensors it is made of."""
        return tuple(part.source for part in self.parts)


Parameter = MatrixParameter | VectorParameter


class Declaring(Protocol):
    """Something that declares parameters: a layer, or a whole model."""

    def parameters(self) -> Sequence[Parameter]:
        """All of its parameters, in the order in which they are loaded."""


def in_groups(units: int, rounds: int) -> Rows:
    """The place of each unit in a file where units of a group lie round-robin: the first unit of every group, then the
    second of every group, and so on, `rounds` of them."""
    return np.arange(units, dtype=np.int32).reshape(rounds, -1).T.reshape(-1)


def whole(source: Source) -> Part:
    """All rows of a source, on every rank."""
    return Part(source, Order(source.shape[0]))


def vector(source: Source | None, *, added: float = 0.0) -> VectorParameter | None:
    """A vector that is one tensor, whole on every rank; None where there is no such tensor."""
    return None if source is None else VectorParameter((whole(source),), added=added)


def stacked(*tensors: tuple[str, int, str], columns: int) -> list[tuple[Source, int]]:
    """Matrices of `columns` columns, given by module, rows and GGUF name, and the row at which each begins.

    Those of one module lie below each other in one tensor, which has the first one's GGUF name.
    """
    heights: dict[str, int] = {}
    firsts = []
    for module, rows, _ in tensors:
        firsts.append(heights.get(module, 0))
        heights[module] = firsts[-1] + rows
    gguf = {module: name for module, _, name in reversed(tensors)}
    sources = {module: Source(module, (height, columns), gguf[module]) for module, height in heights.items()}
    return [(sources[module], first) for (module, *_), first in zip(tensors, firsts, strict=True)]
