"""Programs of a few operations, made and driven like a model's, and the cost of single operations in them.

Times are the Program's own, per node, without Python.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from numaserve.kernels import PackedMatrix, Program, Team, Vector
from numaserve.workers.interface.capacity import Capacity
from numaserve.workers.interface.protocol import PAGE_SIZE, SamplingParams, SlotInit
from numaserve.workers.interface.settings import DEFAULT_SETTINGS, ActivationDtype, ModelSettings
from numaserve.workers.planning.ceilings import Range, bytes_beyond_caches, spare_bytes
from numaserve.workers.program.buffers import Operand, Residual
from numaserve.workers.program.caches import CacheKind, Heads, StateKind
from numaserve.workers.program.given import GivenMatrix
from numaserve.workers.program.handles import product_name
from numaserve.workers.program.native import make_program
from numaserve.workers.program.ops.base import Joining
from numaserve.workers.program.recording.builder import ProgramBuilder
from numaserve.workers.program.setup import ProgramSetup, Ranks, RankShape
from numaserve.workers.program.slots import slot_settings

ONE_HEAD = Heads(1, 1, 32)  # of programs whose attention does not matter
VOCAB = 1024  # of programs whose vocabulary does not matter: the tokens of a prompt differ, and so do their experts
_RANDOM_VALUES = 1 << 20
_STEP_BYTES = 8 << 20  # some tenths of a millisecond
_NS: Literal[2] = 2  # index of the nanoseconds in a node's profile
_BYTES: Literal[5] = 5
_FLOPS: Literal[6] = 6

SlotTokens = tuple[int, int, int, int]  # slot, start, number of tokens, and END_SAMPLE, END_POOL or 0


class Spent(NamedTuple):
    """The time that some nodes took, the bytes of weights and KV cache that they read, and their operations."""

    seconds: float
    nbytes: int
    flops: int


@dataclass(frozen=True)
class Format:
    """A format of weights; `group` columns share a scale, 0 where a whole row does or nothing has one."""

    name: str
    group: int = 0
    activations: ActivationDtype = "bf16"  # activations that codes in groups are multiplied by

    def __str__(self) -> str:
        return product_name(self.name, self.group, self.activations)


BF16, INT8 = Format("bf16"), Format("int8")
_IQ = (Format("iq4", 32), Format("iq3", 32), Format("iq2", 32))
MXFP4, NVFP4 = Format("mxfp4", 32), Format("nvfp4", 128)
_INT4 = (Format("int4", 32), Format("int4", 128))
_BY_INT8 = Format("int4", 32, "int8")  # as for the formats of GGUF files
FORMATS = (BF16, INT8, Format("int8_group", 32), *_INT4, _BY_INT8, MXFP4, *_IQ, Format("fp8", 128), NVFP4)
# The bits of a random code; those of fp8 make no NaN and no huge number.
_CODE_BITS = {
    "int8_group": 0xFF,
    "int4": 0x0F,
    "mxfp4": 0x0F,
    "iq4": 0x0F,
    "iq3": 0x0F,
    "iq2": 0x0F,
    "nvfp4": 0x0F,
    "fp8": 0xBF,
}


def copies_beyond_caches(nbytes: int) -> int:
    """Return a number of copies of `nbytes` that exceed the caches together, so that what a step writes reaches memory.

    Half of `bytes_beyond_caches` is twice the last cache: a copy is evicted before the next step. More would take
    longer to be touched for the first time than to be measured. Without memory for all copies there are fewer, and
    caches may hold some of the bytes.
    """
    return max(1, min(-(-bytes_beyond_caches() // (2 * nbytes)), spare_bytes() // nbytes))


def copies_in_step(nbytes: int) -> int:
    """Return a number of copies of `nbytes` that a step reads long enough to be measured."""
    return -(-_STEP_BYTES // nbytes)


def random_matrix(team: Team, n: int, k: int, format: Format = BF16, *, seed: int = 0) -> GivenMatrix:
    """Return a matrix of random numbers, which repeat after a million: the results do not matter."""
    random, rows = np.random.default_rng(seed), np.arange(n, dtype=np.int32)
    matrix = GivenMatrix(n, k, format.name, format.group)
    matrix.activations = format.activations
    if format.group == 0:
        numbers = random.standard_normal(_RANDOM_VALUES, np.float32).view(np.uint32) >> 16
        data = np.resize(numbers.astype(np.uint16), n * k).view(np.uint8)
        matrix.pack(team, data, "bf16", source_cols=k, rows=rows, dst_row=0)
        return matrix
    codes = np.resize(random.integers(0, 256, _RANDOM_VALUES, np.uint8) & _CODE_BITS[format.name], (n, k))
    # A power of two, which mxfp4 requires.
    scales = np.full((n, -(-k // format.group)), 2.0 ** -round(math.log2(k) / 2), np.float32)
    matrix.pack_codes(
        team, codes, scales, None, source_group=format.group, offsets_are_zeros=True, rows=rows, dst_row=0
    )
    return matrix


def same_matrices(matrix: GivenMatrix, count: int) -> tuple[GivenMatrix, ...]:
    """Return `count` matrices of the same numbers, each in its own memory: faster to make than random ones."""
    made = [GivenMatrix(matrix.n, matrix.k, matrix.format, matrix.group) for _ in range(count)]
    for each in made:
        each.activations = matrix.activations
        each.buffer()[:] = matrix.buffer()
    return tuple(made)


def make_builder(
    team: Team,
    *,
    hidden: int,
    step_tokens: int,
    slots: int = 1,
    context: int = PAGE_SIZE,
    heads: Heads = ONE_HEAD,
    layers: int = 1,
    vocab: int = VOCAB,
    states: tuple[StateKind, ...] = (),
    settings: ModelSettings = DEFAULT_SETTINGS,
) -> ProgramBuilder:
    """Return a builder for one rank, with space for `slots` sequences of `context` tokens."""
    pages = -(-context // PAGE_SIZE)
    shape = RankShape(hidden, [0, vocab], (CacheKind(heads, layers=layers),), states)
    limits = Capacity.of_program(
        max_step_tokens=step_tokens,
        max_logit_rows=max(slots, 16),
        max_slots=slots,
        pages_per_slot=pages,
        num_pages=pages * slots,
    )
    return ProgramBuilder(ProgramSetup(shape, limits, Ranks((team.size,)), settings))


def begin(b: ProgramBuilder, team: Team, embedding: GivenMatrix | None = None) -> tuple[Residual, Operand]:
    """Append the embedding and a norm, with which every program begins."""
    hidden = b.shape.hidden_size
    residual = b.embed(embedding or random_matrix(team, VOCAB, hidden), first_row=0)
    return residual, b.rms_norm(residual, ones(hidden), 1e-5)


def built(b: ProgramBuilder, team: Team) -> Program:
    """Return the recorded operations as a Program that `team` runs, each by itself: none does the work of the one
    before."""
    apart = [replace(each, before=None) if isinstance(each, Joining) else each for each in b.fused()]
    return make_program(b.setup, apart, team)


def ones(count: int) -> Vector:
    """Return the weight of a norm: ones."""
    return Vector(np.ones(count, np.float32))


def start_slot(
    program: Program, slot: int, pages: Sequence[int], *, temperature: float = 0.0, top_p: float = 1.0
) -> None:
    """Begin a sequence with all its pages."""
    sampling = SamplingParams(temperature=temperature, top_p=top_p, seed=1)
    program.init_slot(slot, slot_settings(SlotInit(sampling)))
    program.append_pages(slot, list(pages))


def step(program: Program, sequences: Sequence[SlotTokens]) -> None:
    """Run one step of arbitrary tokens."""
    rows = np.array([(slot, start, count, 0, end, 0) for slot, start, count, end in sequences], np.int32)
    tokens = np.arange(rows[:, 2].sum(), dtype=np.int32) % VOCAB
    program.step(rows, tokens, np.empty(0, np.int32))


def spent_in_step(program: Program, names: Sequence[str], sequences: Sequence[SlotTokens]) -> list[Spent]:
    """Run one step, and return what the nodes of each name took and did in it."""
    before = _totals(program, names)
    step(program, sequences)
    return [
        Spent((now[_NS] - then[_NS]) * 1e-9, now[_BYTES] - then[_BYTES], now[_FLOPS] - then[_FLOPS])
        for then, now in zip(before, _totals(program, names), strict=True)
    ]


def _totals(program: Program, names: Sequence[str]) -> list[dict[int, int]]:
    profile = program.profile()
    return [
        {figure: sum(node[figure] for node in profile if node[0] == name) for figure in (_NS, _BYTES, _FLOPS)}
        for name in names
    ]


def place(matrix: PackedMatrix) -> Range:
    """Return the memory of a matrix."""
    return matrix.address, matrix.nbytes
