"""The tensors that a pickle of torch describes, read as data: nothing is unpickled.

The interpreter below knows the few operations with which torch saves a dictionary of tensors, and `pickletools` parses
their arguments. Globals stand for themselves and are never imported: of those that a pickle may name, two mean an empty
dictionary and a tensor, and the others the type of a storage.
"""

import pickletools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from math import prod
from typing import Any, Literal

DType = Literal["f32", "f16", "bf16"]
ITEM_BYTES: Mapping[DType, int] = {"f32": 4, "f16": 2, "bf16": 2}
_STORAGES: Mapping[str, DType] = {
    "torch FloatStorage": "f32",
    "torch HalfStorage": "f16",
    "torch BFloat16Storage": "bf16",
}
_DICT, _TENSOR = "collections OrderedDict", "torch._utils _rebuild_tensor_v2"
_MOST_OPERATIONS = 10_000
_MOST_NUMBER = 1 << 40


class Unreadable(ValueError):
    """A pickle that is damaged, or that holds something other than a dictionary of tensors."""


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a storage, which is named by its key: contiguous, from an element on."""

    key: str
    dtype: DType
    first: int  # element of the storage
    shape: tuple[int, ...]
    storage_size: int  # elements of the whole storage

    @property
    def elements(self) -> int:
        """The number of elements."""
        return prod(self.shape)


@dataclass(frozen=True)
class _Global:
    name: str


@dataclass(frozen=True)
class _Storage:
    key: str
    dtype: DType
    size: int


_MARK = object()


def pickled_tensors(content: bytes) -> dict[str, StoredTensor]:
    """Return the tensors of a pickled dictionary, by name. Raises `Unreadable`."""
    reader = _Reader()
    for count, (name, argument) in enumerate(_operations(BytesIO(content))):
        if count >= _MOST_OPERATIONS:
            raise Unreadable(f"it has more than {_MOST_OPERATIONS} operations")
        reader.run(name, argument)
    return reader.tensors()


def _operations(content: BytesIO) -> Iterator[tuple[str, Any]]:
    """Yield the name and the argument of each operation before the end, as `pickletools.genops` does. That function
    would also parse the arguments of operations that are refused here."""
    while True:
        code = content.read(1).decode("latin-1")
        known = _BY_CODE.get(code)
        if known is None:
            raise Unreadable("it is damaged: it has no end" if not code else f"it has an unknown operation {code!r}")
        if known.name not in _ALLOWED:
            raise Unreadable(f"it has the operation {known.name}, which no dictionary of tensors needs")
        if known.name == "STOP":
            return
        try:
            yield known.name, _argument(known, content)
        except ValueError as error:
            raise Unreadable(f"it is damaged: {error}") from error


def _argument(operation: Any, content: BytesIO) -> Any:
    if operation.name == "GLOBAL":  # pickletools would interpret escapes in the names, and warn about unknown ones
        return b" ".join(content.readline().removesuffix(b"\n") for _ in range(2)).decode("ascii")
    return None if operation.arg is None else operation.arg.reader(content)


@dataclass
class _Reader:
    """The stack and the memo of a pickle."""

    stack: list[Any] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)

    def run(self, name: str, argument: Any) -> None:
        """Run one operation."""
        if name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name]())
        elif name in _NUMBERS or name == "BINUNICODE":
            self.stack.append(argument)
        elif name in _RUNS:
            _RUNS[name](self, argument)

    def tensors(self) -> dict[str, StoredTensor]:
        """Return the result, when all operations have been run."""
        (found,) = self.stack if len(self.stack) == 1 else (None,)
        if not isinstance(found, dict) or not all(isinstance(each, StoredTensor) for each in found.values()):
            raise Unreadable("it is not a dictionary of tensors")
        return found

    def pop(self) -> Any:
        """Take the top of the stack."""
        if not self.stack:
            raise Unreadable("it is damaged: an operation lacks its operand")
        return self.stack.pop()

    def to_mark(self) -> list[Any]:
        """Take everything above the last mark, and the mark."""
        above: list[Any] = []
        while (top := self.pop()) is not _MARK:
            above.append(top)
        return above[::-1]

    def tuple_of(self, count: int) -> None:
        """Replace the top of the stack by a tuple."""
        self.stack.append(tuple([self.pop() for _ in range(count)][::-1]))

    def put(self, index: Any) -> None:
        """Remember the top of the stack."""
        self.memo[index] = self.top()

    def get(self, index: Any) -> None:
        """Repeat what is remembered."""
        if index not in self.memo:
            raise Unreadable("it is damaged: an operation names an object that does not exist")
        self.stack.append(self.memo[index])

    def top(self) -> Any:
        """Return the top of the stack."""
        if not self.stack:
            raise Unreadable("it is damaged: an operation lacks its operand")
        return self.stack[-1]

    def find_global(self, name: Any) -> None:
        """Note the name of a global; nothing is imported."""
        if name not in (_DICT, _TENSOR, *_STORAGES):
            raise Unreadable(f"it names {str(name)[:100]!r}, which is not a part of a tensor")
        self.stack.append(_Global(name))

    def set_items(self, items: list[Any]) -> None:
        """Add keys and values to the dictionary at the top of the stack."""
        into = self.top()
        if not isinstance(into, dict) or len(items) % 2 or not all(isinstance(key, str) for key in items[::2]):
            raise Unreadable("it is damaged: items are not added to a dictionary by name")
        into.update(zip(items[::2], items[1::2], strict=True))

    def load_storage(self) -> None:
        """Replace the description of a storage: ("storage", type, key, device, number of elements)."""
        match self.pop():
            case ("storage", _Global(name), str(key), str(), int(size)) if name in _STORAGES and _is_size(size):
                self.stack.append(_Storage(key, _STORAGES[name], size))
            case _:
                raise Unreadable("it is damaged: the description of a storage is incomplete")

    def reduce(self) -> None:
        """Make a dictionary or a tensor."""
        arguments, made = self.pop(), self.pop()
        if made == _Global(_DICT) and arguments == ():
            self.stack.append({})
        elif made == _Global(_TENSOR):
            self.stack.append(_tensor(arguments))
        else:
            raise Unreadable("it calls something other than the parts of a tensor")

    def build(self) -> None:
        """Leave out the attributes of a dictionary: torch gives it the versions of modules."""
        attributes = self.pop()
        if not isinstance(self.top(), dict) or not isinstance(attributes, dict):
            raise Unreadable("it is damaged: attributes are given to something other than a dictionary")


def _tensor(arguments: Any) -> StoredTensor:
    match arguments:
        case (_Storage() as storage, int(first), tuple(shape), tuple(strides), bool(), dict()):
            pass
        case _:
            raise Unreadable("it is damaged: the description of a tensor is incomplete")
    if not all(map(_is_size, (first, *shape, *strides))) or len(shape) > 2:
        raise Unreadable("it has a tensor of an impossible size")
    if strides != tuple(prod(shape[axis + 1 :]) for axis in range(len(shape))):
        raise Unreadable("it has a tensor that is not contiguous")
    tensor = StoredTensor(storage.key, storage.dtype, first, shape, storage.size)
    if first + tensor.elements > storage.size:
        raise Unreadable("it has a tensor that is larger than its storage")
    return tensor


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _MOST_NUMBER


_NUMBERS = frozenset({"BININT", "BININT1", "BININT2", "LONG1"})
_CONSTANTS: Mapping[str, Callable[[], Any]] = {
    "MARK": lambda: _MARK,
    "EMPTY_TUPLE": tuple,
    "EMPTY_DICT": dict,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "NONE": lambda: None,
}
_RUNS: Mapping[str, Callable[[_Reader, Any], None]] = {
    "TUPLE": lambda reader, _: reader.stack.append(tuple(reader.to_mark())),
    "TUPLE1": lambda reader, _: reader.tuple_of(1),
    "TUPLE2": lambda reader, _: reader.tuple_of(2),
    "TUPLE3": lambda reader, _: reader.tuple_of(3),
    "BINPUT": _Reader.put,
    "LONG_BINPUT": _Reader.put,
    "BINGET": _Reader.get,
    "LONG_BINGET": _Reader.get,
    "GLOBAL": _Reader.find_global,
    "SETITEM": lambda reader, _: reader.set_items([reader.pop(), reader.pop()][::-1]),
    "SETITEMS": lambda reader, _: reader.set_items(reader.to_mark()),
    "BINPERSID": lambda reader, _: reader.load_storage(),
    "REDUCE": lambda reader, _: reader.reduce(),
    "BUILD": lambda reader, _: reader.build(),
}
_ALLOWED = frozenset({"PROTO", "STOP", "BINUNICODE", *_NUMBERS, *_CONSTANTS, *_RUNS})
_BY_CODE: Mapping[str, Any] = {each.code: each for each in pickletools.opcodes}
