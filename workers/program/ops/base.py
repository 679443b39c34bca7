"""The base of all operations: frozen dataclasses that mark those of their fields that are buffers."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Protocol, TypeVar, get_type_hints

from numaserve.workers.interface.settings import ActivationDtype
from numaserve.workers.program.buffers import Buffer
from numaserve.workers.program.cost import OperationCost
from numaserve.workers.program.handles import product_name
from numaserve.workers.program.setup import ProgramSetup

_T = TypeVar("_T")


class Adapters(Protocol):
    """Low-rank adapters of a matrix; interpreters know what they hold. They are hashed by identity."""

    @property
    def places(self) -> int:
        """The most adapters at a time."""

    @property
    def rank(self) -> int:
        """The largest rank of an adapter."""

    @property
    def parts(self) -> int:
        """Parts of the matrix' rows, which have an A each."""

    @property
    def panels(self) -> Sequence[Sequence[int]]:
        """The parts with rows in each panel of 16 rows."""


class Matrix(Protocol):
    """A weight [n, k], packed or only described; interpreters know what it holds. It is hashed by identity."""

    @property
    def n(self) -> int:
        """Its rows, the out features."""

    @property
    def k(self) -> int:
        """Its columns, the in features."""

    @property
    def format(self) -> str:
        """The format of its values, such as "int4"."""

    @property
    def group(self) -> int:
        """Columns that share a scale; 0: the format has no groups."""

    @property
    def offsets(self) -> str:
        """The offsets that groups have in addition to scales: none, zeros or minima."""

    @property
    def activations(self) -> ActivationDtype:
        """The data type that codes in groups of integers are multiplied by."""

    @property
    def nbytes(self) -> int:
        """Its memory, in bytes."""

    @property
    def adapters(self) -> Adapters | None:
        """The adapters that update its products; None: there are none."""


class Vector(Protocol):
    """A norm's weight or a bias, fp32."""

    @property
    def size(self) -> int:
        """The number of its values."""


Rope = Any  # cosines and sines of positions; interpreters alone look into it


# Marks of fields that hold a buffer: what the operation does with it.
Reads = Annotated[_T, "r"]
Writes = Annotated[_T, "w"]  # whatever it held
Updates = Annotated[_T, "rw"]


@dataclass(frozen=True, kw_only=True)
class Operation(ABC):
    """An operation. Fields that hold a buffer are `Reads`, `Writes` or `Updates` of its type, the others attributes."""

    _access: ClassVar[dict[str, str]] = {}  # the marks of fields that hold a buffer

    def __init_subclass__(cls) -> None:
        """Look the fields up once for all operations of the kind."""
        hints = get_type_hints(cls, include_extras=True)
        marks = {name: getattr(hint, "__metadata__", None) for name, hint in hints.items()}
        cls._access = {name: mark[0] for name, mark in marks.items() if mark}

    @property
    def buffers(self) -> list[Buffer]:
        """All buffers, in the order of their fields."""
        return self._with_access("rw")

    @property
    def reads(self) -> list[Buffer]:
        """The buffers whose contents matter to it."""
        return self._with_access("r")

    @property
    def writes(self) -> list[Buffer]:
        """The buffers that it changes."""
        return self._with_access("w")

    @abstractmethod
    def cost(self, program: ProgramSetup) -> Sequence[OperationCost]:
        """Its costs on this rank: one for each thing it does."""

    def _with_access(self, wanted: str) -> list[Buffer]:
        of = (getattr(self, name) for name, access in self._access.items() if set(wanted) & set(access))
        return [buffer for buffer in of if buffer is not None]


@dataclass(frozen=True, kw_only=True)
class Joining(Operation):
    """An operation that can do the work of the one before it too, each thread what it needs of that, where a barrier
    between the two would cost more. The one before stays in the list; what it touches is alive until this one ends."""

    before: Operation | None = None

    @property
    def buffers(self) -> list[Buffer]:
        """All buffers, those of the operation before among them."""
        return [*super().buffers, *self._of_before]

    @property
    def reads(self) -> list[Buffer]:
        """The buffers that it reads, and those of the operation before."""
        return [*super().reads, *self._of_before]

    @property
    def _of_before(self) -> list[Buffer]:
        return self.before.buffers if self.before else []


@dataclass(frozen=True, kw_only=True)
class Accumulating(Operation):
    """An operation that may add its result to what the result's place holds."""

    accumulate: bool = False

    @property
    def reads(self) -> list[Buffer]:
        """The buffers that it reads; with `accumulate` those that it writes too."""
        return [*super().reads, *(self.writes if self.accumulate else [])]


def product_of(weight: Matrix) -> str:
    """Return the name of products with a weight."""
    return product_name(weight.format, weight.group, weight.activations)
