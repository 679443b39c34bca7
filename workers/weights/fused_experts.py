"""Checkpoints that keep a matrix of all experts of a layer in one tensor, seen as if each expert had its own."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace

from numaserve.workers.errors import OperatorError
from numaserve.workers.models.family import MoeNames
from numaserve.workers.weights.source import RawTensor, TensorSource

_SUFFIXES = {"": "weight", "_bias": "bias", "_blocks": "blocks", "_scales": "scales"}


class FusedExperts:
    """The tensors of `source`, those of experts one by one: expert 3's part of `experts.down_proj` is
    `experts.3.down_proj.weight`. It has `names`, and `count` experts in a layer.

    Weights lie with in features first, [experts, in, out]; quantised ones, `_blocks` and `_scales`, as ever.
    """

    def __init__(self, source: TensorSource, names: MoeNames, count: int) -> None:
        self._source, self._count = source, count
        self.interleaved_rope = source.interleaved_rope
        modules = "|".join(dict.fromkeys(map(re.escape, (names.gate, names.up, names.down))))
        fused = re.compile(rf"(.*\.{re.escape(names.experts)})\.({modules})({'|'.join(filter(None, _SUFFIXES))})?")
        self._names = {name: name for name in source.names()}
        self._parts: dict[str, int] = {}
        for name in source.names():
            found = fused.fullmatch(name)
            if found is None:
                continue
            del self._names[name]
            experts, module, suffix = found.groups(default="")
            for index in range(count):
                part = f"{experts}.{index}.{module}.{_SUFFIXES[suffix]}"
                self._names[part] = name
                self._parts[part] = index

    def names(self) -> Collection[str]:
        """The names of all tensors."""
        return self._names.keys()

    def tensor(self, name: str) -> RawTensor:
        """A tensor of numbers, which has the name of what it is a part of. Raises `OperatorError` as the source does,
        and for a tensor of another number of experts."""
        return self._cut(name, self._source.tensor(self._names[name]))

    def part(self, name: str) -> RawTensor:
        """A tensor of a quantised matrix, likewise."""
        return self._cut(name, self._source.part(self._names[name]))

    def release(self, tensor: RawTensor) -> None:
        """Say that the tensor is not needed for now."""
        self._source.release(tensor)

    def _cut(self, name: str, whole: RawTensor) -> RawTensor:
        index = self._parts.get(name)
        if index is None:
            return whole
        if whole.shape[:1] != (self._count,):
            raise OperatorError(
                f"tensor {whole.name} has shape {list(whole.shape)}, the configuration asks for {self._count} experts; "
                "fetch the checkpoint again"
            )
        nbytes = len(whole.data) // self._count
        data, shape = whole.data[index * nbytes : (index + 1) * nbytes], whole.shape[1:]
        turned = name.endswith(".weight")
        return replace(whole, data=data, shape=shape[::-1] if turned else shape, turned=turned)
