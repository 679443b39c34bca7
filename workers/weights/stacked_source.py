"""Checkpoints with one tensor for the matrices of all units (such as experts) of a layer, presented as a tensor per
unit."""

from collections.abc import Collection
from dataclasses import replace

from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.layers.layer import Layer
from numaserve.workers.layers.names import TensorNames
from numaserve.workers.layers.parameters import EACH, MatrixParameter
from numaserve.workers.weights.source import RawTensor, TensorSource

_SUFFIXES = {"": "weight", ".weight": "weight", "_bias": "bias", "_blocks": "blocks", "_scales": "scales"}
_Stacks = dict[str, tuple[int, bool]]  # modules with `EACH` in them: the number of units, and if weights are turned


class StackedSource:
    """The tensors of `source`, with those of units one by one: expert 3's part of `experts.down_proj` is
    `experts.3.down_proj.weight`.

    Turned weights have in features first, [units, in, out]; quantized ones, `_blocks` and `_scales`, have the usual
    order.
    """

    def __init__(self, source: TensorSource, stacks: _Stacks, names: TensorNames) -> None:
        self._source = source
        self._names = {name: name for name in source.names()}
        self._parts: dict[str, tuple[int, int, bool]] = {}  # the unit, the number of units, and if it is turned
        for module, (count, turned) in stacks.items():
            for ending, suffix in _SUFFIXES.items():
                self._divide(names.named(module), ending, suffix, count, turned=turned and not ending)

    def names(self) -> Collection[str]:
        """The names of all tensors."""
        return self._names.keys()

    def tensor(self, name: str) -> RawTensor:
        """Return a tensor of numbers; a part has the name of the whole tensor. Raises `OperatorError` as the source
        does, and for a tensor with another number of units."""
        return self._cut(name, self._source.tensor(self._names[name]))

    def part(self, name: str) -> RawTensor:
        """Return a tensor of a quantized matrix, as `tensor` does."""
        return self._cut(name, self._source.part(self._names[name]))

    def release(self, tensor: RawTensor) -> None:
        """Mark the tensor as not needed for now."""
        self._source.release(tensor)

    def _divide(self, module: str, ending: str, suffix: str, count: int, *, turned: bool) -> None:
        whole = module.replace(f".{EACH}", "") + ending
        if self._names.pop(whole, None) is None:
            return
        for unit in range(count):
            name = f"{module.replace(EACH, str(unit))}.{suffix}"
            self._names[name], self._parts[name] = whole, (unit, count, turned)

    def _cut(self, name: str, whole: RawTensor) -> RawTensor:
        unit, count, turned = self._parts.get(name, (0, 0, False))
        if count == 0:
            return whole
        if whole.shape[:1] != (count,):
            raise OperatorError(
                f"tensor {whole.name} has shape {list(whole.shape)}, but the configuration asks for {count} experts; "
                "fetch the checkpoint again"
            )
        nbytes = len(whole.data) // count
        data, shape = whole.data[unit * nbytes : (unit + 1) * nbytes], whole.shape[1:]
        return replace(whole, data=data, shape=shape[::-1] if turned else shape, turned=turned)


def stacks_of(model: Layer) -> _Stacks:
    """Return the matrices of a model for which checkpoints have one tensor for all units."""
    return {
        source.name: (parameter.each.count, source.stacked == "turned")
        for parameter in model.parameters()
        if isinstance(parameter, MatrixParameter) and parameter.each is not None
        for source in parameter.sources
        if source.stacked
    }
