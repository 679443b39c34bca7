"""Programs of one operation, on each instruction set and by the reference, against float64.

The results of each interpreter are within the bounds of the case. On an instruction set they have the same bits on any
number of threads, fused with other operations or not, however steps cut the sequences, and whatever an earlier sequence
left in a slot.
"""

import ctypes
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import kv_reference
import numpy as np
import pytest
from kernel_ops import assert_within, widened
from kernel_reference import F32, Bounded, to_bf16
from msgspec import structs
from numaserve.kernels import Program, Team
from numaserve.workers.interface.capacity import PAGE_SIZE, Capacity
from numaserve.workers.interface.protocol import SamplingParams, SlotInit
from numaserve.workers.interface.settings import KvCacheDtype, ModelSettings
from numaserve.workers.program.buffers import Buffer, padded
from numaserve.workers.program.caches import CacheIndex, CacheKind, StateKind
from numaserve.workers.program.layout import layout
from numaserve.workers.program.native import make_program, native_rows
from numaserve.workers.program.recording.builder import ProgramBuilder
from numaserve.workers.program.reference.program import ReferenceProgram
from numaserve.workers.program.setup import ProgramSetup, Ranks, RankShape
from numaserve.workers.program.slots import slot_settings
from numpy.typing import NDArray

LAYER = CacheIndex(0, 0)  # the only one that has a cache or a state
VOCABULARY = 256
CHUNKS = (1, 2, 5, 1, 16, 33, 7, 64)  # tokens of the steps of a sequence, again and again
NONE = np.empty(0, np.int32)

Part = tuple[int, int, int]  # number of a sequence, and its tokens from the first to the last + 1
Results = list[NDArray]
# For the first sequence of each step: the snapshot that it begins with, or -1, and what it stores after some tokens.
Snapshot = tuple[int, list[tuple[int, int]]] | None


@dataclass(frozen=True, kw_only=True)
class Case:
    """An operation, the rows that it is given, and the values and bounds of its results."""

    given: Mapping[str, F32]  # [tokens, columns]
    record: Callable[..., Buffer | tuple[Buffer, ...]]  # appends it to a builder; takes the given rows by their names
    expected: Sequence[Bounded]
    hidden: int = 32
    lengths: Sequence[int] = ()  # tokens of each sequence; (): all rows are one sequence
    tokens: Sequence[int] = ()  # ids; (): zeros
    end: int = 0  # of all sequences, which are whole in a step unless it is 0
    pools: bool = False  # whether a result has a row of each sequence
    prefix: int = 0  # tokens of each sequence that a first step takes, where others take a few
    caches: tuple[CacheKind, ...] = ()
    states: tuple[StateKind, ...] = ()
    grids: Sequence[Sequence[int]] = ()  # of the images of each sequence, which are whole in a step
    kv_dtype: KvCacheDtype = "bf16"
    rounds: bool = False  # whether the last result is the first one in bf16

    @property
    def sequences(self) -> list[Part]:
        rows = len(next(iter(self.given.values())))
        return [(index, 0, length) for index, length in enumerate(self.lengths or (rows,))]

    def pieces(self) -> Iterator[list[Part]]:
        """Steps with a chunk of each sequence; with one sequence where they must be whole."""
        if self.end:
            yield from ([each] for each in reversed(self.sequences))
            return
        sizes = itertools.chain([self.prefix] * len(self.lengths) * (self.prefix > 0), itertools.cycle(CHUNKS))
        done = [0] * len(self.sequences)
        while step := [
            (index, done[index], self._after_image(index, min(done[index] + next(sizes), end)))
            for index, _, end in self.sequences
            if done[index] < end
        ]:
            yield step
            for index, _, end in step:
                done[index] = end

    def _after_image(self, index: int, end: int) -> int:
        """The end of a piece, or of the image that the piece would end in."""
        grids = self.grids[index] if self.grids else ()
        return max([end, *(last for first, last in image_ranges(grids) if first < end)])


def image_ranges(grids: Sequence[int]) -> list[tuple[int, int]]:
    """The positions of images, [first, end)."""
    return [(first, first + rows * cols) for first, rows, cols in zip(*(grids[i::3] for i in range(3)), strict=True)]


class OneOperation:
    """The program of a case, run by an instruction set or by the reference."""

    def __init__(self, case: Case, isa: str, threads: int = 1, *, fused: bool = False) -> None:
        self.case = case
        ends = [end for *_, end in case.sequences]
        pages = [-(-end // PAGE_SIZE) for end in ends]
        limits = Capacity.of_program(sum(ends), len(ends), len(ends), max(pages), sum(pages) + 1)
        setup = ProgramSetup(
            RankShape(case.hidden, [0, VOCABULARY], case.caches, case.states),
            structs.replace(limits, num_snapshots=1),
            Ranks((threads,)),
            ModelSettings(kv_cache_dtype=case.kv_dtype),
        )
        b = ProgramBuilder(setup)
        made = case.record(b, **{name: b.given(name, rows.shape[1]) for name, rows in case.given.items()})
        self.results = made if isinstance(made, tuple) else (made,)
        for index, result in enumerate(self.results):
            b.keep(str(index), result)  # type: ignore[arg-type]
        operations = b.fused() if fused else b.operations
        if isa == "reference":
            self.program = ReferenceProgram(setup, operations)
            self.outside = self.program.outside
        else:
            with pytest.MonkeyPatch.context() as patches:
                patches.setenv("NUMASERVE_ISA", isa)
                self.program = make_program(setup, operations, Team([-1] * threads))
            assert self.program.isa == isa
            self.outside, self._layout = native_rows(self.program, operations), layout(operations)
        taken = itertools.accumulate(pages, initial=1)  # nothing is stored in the first page
        self.pages = [list(range(first, end))[::-1] for first, end in itertools.pairwise(taken)]

    def run(self, steps: Iterable[Sequence[Part]] = (), snapshot: Snapshot = None) -> Results:
        """The results of all rows, bits of bf16 or fp32, in some steps or in one; then the states, and the cache."""
        case, sequences = self.case, self.case.sequences
        states = self.program.state_memory(LAYER)[0][: len(sequences)] if case.states else np.zeros((0, 4), np.uint8)
        for memory in (states, *([self._kv_cache()] if case.caches else [])):
            memory[:] = 0xFF
        for slot, pages in enumerate(self.pages):
            grids = list(case.grids[slot]) if case.grids else []
            self.program.init_slot(slot, slot_settings(SlotInit(SamplingParams(), grids=grids)))
            self.program.append_pages(slot, pages)
        firsts = list(itertools.accumulate((end for *_, end in sequences), initial=0))
        rows = len(sequences) if case.pools else firsts[-1]
        found = [np.zeros((rows, each.cols), np.float32 if each.itemsize == 4 else np.uint16) for each in self.results]
        for step in steps or [sequences]:
            taken = np.concatenate([np.arange(firsts[index] + a, firsts[index] + b) for index, a, b in step])
            self._step(step, taken, snapshot)
            made = [index for index, *_ in step] if case.pools else taken
            for index, (result, buffer) in enumerate(zip(found, self.results, strict=True)):
                result[made] = self.outside.kept(str(index))[: len(made)]
                self._check_padding(buffer, len(made))
        return [
            *found,
            *([states.view(np.float32).copy()] if case.states else []),
            *([self._kv_cache().copy()] if case.caches else []),
        ]

    def _step(self, step: Sequence[Part], rows: NDArray, snapshot: Snapshot) -> None:
        """A step after which what it has not written is NaN."""
        case = self.case
        if isinstance(self.program, Program):
            self.program.arena[:] = 0xFF
        for name, values in case.given.items():
            self.outside.given(name)[: len(rows)] = values[rows]
        plan = [(index, first, end - first, 0, case.end, 0) for index, first, end in step]
        tokens = np.array(case.tokens or [0] * (rows[-1] + 1), np.int32)[rows]
        states = () if snapshot is None else [(0, *snapshot)]
        self.program.step(np.array(plan, np.int32), tokens, NONE, states=states)

    def _kv_cache(self) -> NDArray[np.uint8]:
        """The bytes of all pages, [pages, heads, bytes]."""
        ((address, nbytes),) = self.program.kv_memory
        whole = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))
        return whole.reshape(max(map(max, self.pages)) + 1, self.case.caches[0].heads.kv, -1)

    def stored(self) -> Results:
        """Keys and values of all tokens, if any are stored."""
        if not self.case.caches or (self._kv_cache() == 0xFF).all():
            return []
        cache, heads = self._kv_cache(), self.case.caches[0].heads
        assert not isinstance(self.program, Program) or (cache[0] == 0xFF).all()
        dims = (heads.dim,) if heads.is_latent else (heads.dim, heads.values)
        if isinstance(self.program, Program):
            unit = 2 if self.case.kv_dtype == "bf16" else 1
            nbytes = [PAGE_SIZE * (padded(dim) * unit + (0 if unit == 2 else 2)) for dim in dims]
            halves = np.split(cache, np.cumsum(nbytes)[:-1], axis=2)
        else:
            width = cache.shape[2] // (PAGE_SIZE * sum(dims))
            values = cache.view(np.uint16 if width == 2 else np.float32)
            halves = np.split(values.reshape(*cache.shape[:2], PAGE_SIZE, -1), np.cumsum(dims)[:-1], axis=3)
        return [self._tokens(*each, is_k=not index) for index, each in enumerate(zip(halves, dims, strict=True))]

    def _tokens(self, half: NDArray, dim: int, *, is_k: bool) -> NDArray:
        """Keys or values of all tokens; zeros follow those of a sequence, and each head's."""
        found = []
        for pages, (_, _, end) in zip(self.pages, self.case.sequences, strict=True):
            whole = half[pages]
            if half.ndim == 3:
                by_head = [
                    [kv_reference.read_half_page(self.case.kv_dtype, x, is_k=is_k) for x in page] for page in whole
                ]
                whole = np.array(by_head, np.float32)
                assert not whole[..., dim:].any()
                assert not whole[-1, :, (end - 1) % PAGE_SIZE + 1 :].any()
            tokens = whole[..., :dim].swapaxes(1, 2).reshape(-1, whole.shape[1] * dim)
            found.append(tokens[:end])
        return np.concatenate(found)

    def _check_padding(self, buffer: Buffer, rows: int) -> None:
        """Zeros follow the columns of rows that a product may read."""
        if isinstance(self.program, Program) and buffer.itemsize == 2 and buffer.whole is buffer:
            first, ld, _ = self._layout.place(buffer)
            whole = self.program.arena[first : first + 2 * rows * ld].view(np.uint16).reshape(rows, ld)
            assert not whole[:, buffer.cols : padded(buffer.cols)].any()


def check(case: Case, isa: str) -> None:
    """Check a case by one interpreter."""
    if isa == "reference" and not case.expected:
        return  # only bits are compared
    whole = OneOperation(case, isa)
    found, own = whole.run(), len(whole.results)
    for result, (value, bound) in zip([*found[:own], *whole.stored(), *found[own:]], case.expected, strict=False):
        assert_within(result, value, bound)
    if isa == "reference":
        return
    if case.rounds:
        assert_same_bits(found[own - 1], to_bf16(found[0]))
    for others in (
        whole.run(case.pieces()),
        OneOperation(case, isa, threads=3).run(case.pieces()),
        OneOperation(case, isa, threads=9, fused=True).run(),  # with nine threads, strips of states are halved
    ):
        for one, other in zip(found, others, strict=True):
            assert_same_bits(other, one)
    if case.states:
        check_snapshot(whole, found)


def check_snapshot(program: OneOperation, expected: Results) -> None:
    """A sequence goes on from a snapshot as from the tokens before it."""
    ((_, _, end),) = program.case.sequences
    half = end // 2
    made = program.run(snapshot=(-1, [(half, 0)]))
    rest = program.run([[(0, half, end)]], snapshot=(0, []))
    for one, whole, other in zip(made, expected, rest, strict=True):
        assert_same_bits(one, whole)
        rows = slice(half if len(whole) == end else 0, None)
        assert_same_bits(other[rows], whole[rows])


def assert_same_bits(found: NDArray, expected: NDArray) -> None:
    """Asserts equal bits, but for those of what is no number."""
    bits = np.dtype(f"u{found.itemsize}")
    differ = (found.view(bits) != expected.view(bits)) & ~(np.isnan(widened(found)) & np.isnan(widened(expected)))
    assert not differ.any(), f"at {np.argwhere(differ)[:5].tolist()}"


def table(make: Callable[..., Case], *rows: tuple[object, ...]) -> dict[str, Callable[[np.random.Generator], Case]]:
    """Cases by name, one for each row of arguments."""

    def row(arguments: tuple[object, ...]) -> Callable[[np.random.Generator], Case]:
        return lambda rng: make(rng, *arguments)

    return {" ".join([make.__name__, *map(str, each)]): row(each) for each in rows}


def normal(rng: np.random.Generator, *shape: int) -> F32:
    return rng.standard_normal(shape).astype(np.float32)
