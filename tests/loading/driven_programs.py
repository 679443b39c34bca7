"""Programs with random weights, and a way to drive any interpreter's through the same steps."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numaserve.kernels import PackedMatrix, Program, RopeTable, Team, Vector
from numaserve.workers.interface.protocol import SamplingParams, SlotInit
from numaserve.workers.program.given import GivenMatrix
from numaserve.workers.program.native import make_program, native_rows
from numaserve.workers.program.ops.base import Operation
from numaserve.workers.program.outside import OutsideRows
from numaserve.workers.program.recording.builder import ProgramBuilder
from numaserve.workers.program.reference.numbers import DECLARED, Numbers
from numaserve.workers.program.reference.program import ReferenceProgram
from numaserve.workers.program.reference.ranks import Group, Member
from numaserve.workers.program.slots import slot_settings

from tests.support.recorded_programs import HIDDEN, VOCAB, Part, Shapes, recorders

AnyProgram = Program | ReferenceProgram
RECURRENT = [
    f"{name}, 1"
    for name in ("recurrent", *(f"{of}, {each}" for of in ("gated", "spaces", "keyed") for each in ("bf16", "int8")))
]  # names of programs with states
NONE = np.empty(0, np.int32)
# Rows of (slot, start, tokens or None: the one sampled before, whether to sample or what else it ends in, targets).
Row = tuple[int, int, Sequence[int] | None, int, Sequence[int]]
Told = tuple[int, Any, Any, list[float]]


class RandomWeights(Shapes):
    """Packed matrices of a rank; vectors, and whole matrices, are the same on every one."""

    def __init__(self, team: Team, rank: int = 0, *, spoiled_token: int | None = None) -> None:
        self._team, self._rank, self._made, self._spoiled_token = team, rank, 0, spoiled_token

    def _random(self, whole: bool) -> np.random.Generator:
        self._made += 1
        return np.random.default_rng([self._made, 0 if whole else self._rank + 1])

    def matrix(self, n: int, k: int, format: str = "bf16", group: int = 0, *, whole: bool = False) -> PackedMatrix:
        values = self._random(whole).standard_normal((n, k), np.float32) * k**-0.5
        if self._made == 1 and self._spoiled_token is not None:  # the embedding
            values[self._spoiled_token] = np.nan
        return packed(self._team, values, format, group)

    def vector(self, size: int = HIDDEN) -> Vector:
        return Vector(self._random(True).uniform(0.5, 1.5, size).astype(np.float32))

    def decays(self, size: int) -> Vector:
        return Vector(-self._random(True).uniform(0.1, 1.5, size).astype(np.float32))

    def rope(self) -> RopeTable:
        angles = np.outer(np.arange(512), 100.0 ** (-np.arange(16) / 16)).astype(np.float32)
        return RopeTable(np.cos(angles), np.sin(angles))


def packed(team: Team, values: np.ndarray, format: str = "bf16", group: int = 0) -> PackedMatrix:
    """Values [n, k] in a format."""
    data, (n, k) = values.astype(np.float32).view(np.uint8).reshape(-1), values.shape
    matrix = GivenMatrix(n, k, format, group)
    matrix.activations = "int8"
    matrix.pack(team, data, "f32", source_cols=k, rows=np.arange(n, dtype=np.int32), dst_row=0)
    return matrix


def start(program: AnyProgram, slot: int, pages: Sequence[int], sampling: SamplingParams | None = None) -> None:
    """Begin a sequence, of which the most likely tokens are taken unless something else is asked for."""
    sampling = sampling or SamplingParams(temperature=0.0, logprobs=5)
    program.init_slot(slot, slot_settings(SlotInit(sampling)))
    program.append_pages(slot, list(pages))


def run(
    program: AnyProgram,
    rows: Sequence[Row],
    drafts: Sequence[int] = (),
    states: Sequence[tuple[int, int, list[tuple[int, int]]]] = (),
) -> list[Told]:
    """One step; for each row of logits its sequence, what was sampled, and what the target and named tokens got."""
    plan = [
        (slot, begin, 1 if tokens is None else len(tokens), tokens is None, sample, len(targets))
        for slot, begin, tokens, sample, targets in rows
    ]
    tokens = [token for _, _, tokens, _, _ in rows for token in tokens or ()]
    targets = [token for row in rows for token in row[4]]
    sequences = np.array(plan, np.int32).reshape(-1, 6)
    ids, wanted = np.array(tokens, np.int32), np.array(targets, np.int32)
    found, *_ = program.step(sequences, ids, wanted, drafts=list(drafts), states=states)
    return list(found)


def steps(length: int = 48) -> list[list[Row]]:
    """A prompt in one chunk and one in two, with log-probabilities of their own tokens, then both together."""
    first, second = np.random.default_rng(0).integers(0, VOCAB, (2, length)).tolist()
    half = length // 2
    return [
        [(0, 0, first, True, first[1:])],
        [(1, 0, second[:half], False, second[1 : half + 1]), (0, length, None, True, ())],
        [(0, length + 1, [3], True, ()), (1, half, second[half:], True, second[half + 1 :])],
        [(1, length, [7], True, ()), (0, length + 2, [9], True, [4])],
    ]


def answers(program: AnyProgram) -> list[Told]:
    """What a program answers to all `steps`."""
    for slot in range(2):
        start(program, slot, range(slot, 32, 2))
    return [row for each in steps() for row in run(program, each)]


def logprobs(found: list[Told]) -> np.ndarray:
    """Those of the targets, which are the same whatever is sampled."""
    return np.array([target[1] for _, _, target, _ in found if target is not None])


def reference(
    b: ProgramBuilder, operations: Sequence[Operation], numbers: Numbers, ranks: Member | None = None
) -> ReferenceProgram:
    return ReferenceProgram(b.setup, operations, numbers=numbers, ranks=ranks)


def recurrent_program(name: str, backend: str, team: Team, numbers: Numbers) -> AnyProgram:
    """A recorded program of one rank, native or with the numbers of the reference."""
    b = recorders(Part(weights=RandomWeights(team)))[name]()
    return make_program(b.setup, b.fused(), team) if backend == "native" else reference(b, b.fused(), numbers)


def reference_group(builders: Sequence[ProgramBuilder], numbers: Numbers) -> list[list[Told]]:
    """What each rank of a group answers, or, if it is not the first, tells nobody."""
    group = Group(len(builders))
    programs = [reference(b, b.fused(), numbers, Member(group, rank)) for rank, b in enumerate(builders)]
    with ThreadPoolExecutor(len(builders)) as threads:
        return list(threads.map(answers, programs))


def both(b: ProgramBuilder, team: Team) -> list[tuple[AnyProgram, OutsideRows]]:
    """The native program of one rank and the reference, with the rows of each from outside and for it."""
    native, other = make_program(b.setup, b.fused(), team), reference(b, b.fused(), DECLARED)
    return [(native, native_rows(native, b.fused())), (other, other.outside)]


def widened(bits: np.ndarray) -> np.ndarray:
    """The bits of bf16 as fp32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)
