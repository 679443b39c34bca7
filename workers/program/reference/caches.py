"""The caches of a program that the reference runs: keys and values in pages, and states of slots."""

import numpy as np
import numpy.typing as npt
import torch
from numaserve.workers.interface.protocol import PAGE_SIZE
from numaserve.workers.program.caches import CacheIndex, CacheKind
from numaserve.workers.program.reference.numbers import Numbers
from numaserve.workers.program.reference.segments import Segment
from numaserve.workers.program.reference.step import SequenceRows, Step
from numaserve.workers.program.setup import ProgramSetup

Bytes = npt.NDArray[np.uint8]


class KvCache:
    """Keys and values in pages; a latent cache has one head, and no values of its own.

    For each kind of cache: [layers, pages, heads, tokens of a page, dimensions of a key and then of its value].
    """

    def __init__(self, setup: ProgramSetup, numbers: Numbers) -> None:
        dtype = setup.settings.kv_cache_dtype
        self._numbers, self._kv_dtype = numbers, dtype
        held = torch.bfloat16 if numbers.rounded and dtype == "bf16" else numbers.dtype
        self._tables, pages = setup.page_tables, setup.limits.table_pages
        kinds = zip(setup.shape.caches, self._tables, strict=True)
        self._kinds = [self._memory(kind, pages[table], held) for kind, table in kinds]

    @staticmethod
    def _memory(kind: CacheKind, pages: int, held: torch.dtype) -> torch.Tensor:
        heads = kind.heads
        sizes = (kind.layers, pages, heads.kv, PAGE_SIZE, heads.dim + (0 if heads.is_latent else heads.values))
        # Numpy's zeros are memory that the system gives at its first use; torch writes its own at once.
        return torch.from_numpy(np.zeros(sizes, f"i{held.itemsize}")).view(held)

    @property
    def layers(self) -> list[tuple[int, int]]:
        """Address and bytes of each layer's memory."""
        return [(layer.data_ptr(), layer.nbytes) for kind in self._kinds for layer in kind]

    def store(self, cache: CacheIndex, step: Step, keys: torch.Tensor, values: torch.Tensor | None = None) -> None:
        """Store the step's keys, and values, [tokens, heads, dimensions].

        A token with a NaN among its values gets zeros, and its key marks it: tokens that do not attend to it multiply
        its values by a probability of zero, which would not hide a NaN.
        """
        told = keys if values is None else values
        bad = ~torch.isfinite(told).all(-1, keepdim=True)
        parts = [keys.masked_fill(bad, float("nan")), *([] if values is None else [values.masked_fill(bad, 0.0)])]
        pages, places = zip(*step.places(self._tables[cache.kind]), strict=True)
        memory = self._kinds[cache.kind]
        kept = torch.cat([self._numbers.kept(part, self._kv_dtype) for part in parts], dim=-1).to(memory.dtype)
        memory[cache.layer][list(pages), :, list(places)] = kept

    def load(self, cache: CacheIndex, sequence: SequenceRows, first: int = 0) -> torch.Tensor:
        """The keys of a sequence, with the values after them, from its page number `first` on: [heads, tokens,
        dimensions]."""
        pages = sequence.slot.tables[self._tables[cache.kind]].pages[first : -(-sequence.end // PAGE_SIZE)]
        held = self._kinds[cache.kind][cache.layer][pages]
        return held.transpose(0, 1).flatten(1, 2)[:, : sequence.end - first * PAGE_SIZE].to(self._numbers.dtype)


class States:
    """The states of layers, zero at first: for each kind of state [layers, slots and snapshots, bytes] and [layers,
    pages, bytes]. States after draft tokens come after the snapshots."""

    def __init__(self, setup: ProgramSetup) -> None:
        kinds, limits = setup.shape.states, setup.limits
        more = limits.num_snapshots + limits.max_slots * limits.max_drafts
        kept = [limits.max_slots + (more if kind.of_sequences else 0) for kind in kinds]
        self._kept = [
            np.zeros((kind.layers, n, kind.slot_bytes), np.uint8) for kind, n in zip(kinds, kept, strict=True)
        ]
        self._of_pages = [np.zeros((kind.layers, limits.num_pages, kind.page_bytes), np.uint8) for kind in kinds]

    def memory(self, index: CacheIndex) -> tuple[Bytes, Bytes]:
        """The states of a layer: [slots and snapshots, bytes] and [pages, bytes]."""
        return self._kept[index.kind][index.layer], self._of_pages[index.kind][index.layer]

    def before(self, index: CacheIndex, segment: Segment) -> Bytes:
        """The states of a layer before a segment, a copy."""
        kept = self._kept[index.kind][index.layer]
        return np.zeros_like(kept[0]) if segment.load is None else kept[segment.load].copy()

    def after(self, index: CacheIndex, segment: Segment) -> Bytes:
        """The memory for the states of a layer after a segment. Each operation fills its part."""
        found: Bytes = self._kept[index.kind][index.layer][segment.store]
        return found
