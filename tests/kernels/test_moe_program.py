"""A rank that holds some of the experts gives, to the last bit, what one gives whose other experts are all zeros."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import kernel_ops
import kernel_reference as reference
import numpy as np
import operation_fields
import pytest
from numaserve.kernels import PackedMatrix, Team, Vector
from numaserve.workers.interface.capacity import Capacity
from numaserve.workers.interface.protocol import PAGE_SIZE
from numaserve.workers.interface.settings import ActivationDtype
from numaserve.workers.program.buffers import Buffer, Operand, Partial
from numaserve.workers.program.caches import CacheKind, Heads
from numaserve.workers.program.native import make_program
from numaserve.workers.program.ops.base import Operation
from numaserve.workers.program.ops.experts import MultiplyExperts, Routing
from numaserve.workers.program.recording.builder import ProgramBuilder
from numaserve.workers.program.recording.experts import ExpertMatrices, Router
from numaserve.workers.program.setup import ProgramSetup, Ranks, RankShape

HIDDEN, VOCAB, EXPERTS, INNER, SHARED = 64, 16, 5, 32, 96
PROMPT = [token % VOCAB for token in range(23)]
NONE = np.empty(0, np.int32)


@dataclass(frozen=True)
class Format:
    """Of the experts' matrices, and what they are multiplied by."""

    weights: str = "bf16"
    group: int = 0
    activations: ActivationDtype = "bf16"


FORMATS = [Format(), Format("int8"), Format("int4", 32), Format("int4", 32, "int8"), Format("fp8", 128)]


@dataclass(frozen=True)
class Model:
    """Embeddings, one mixture of experts, and a head on their sum, in bf16, [n, k]."""

    embedding: reference.U16
    router: reference.U16
    experts: tuple[tuple[reference.U16, reference.U16, reference.U16], ...]  # gate, up, down
    shared: tuple[reference.U16, reference.U16, reference.U16] | None
    head: reference.U16
    top_k: int = 3

    @property
    def hidden(self) -> int:
        return self.embedding.shape[1]

    def append(self, b: ProgramBuilder, x: Operand, held: range, format: Format) -> Partial:
        """The mixture of some of the experts, and the shared one."""
        routed = [_mlp(self.experts[expert], format) for expert in held]
        gate_up, down = _mlp(self.shared, format) if self.shared else (None, None)
        return b.experts(
            x,
            Routing(num_experts=len(self.experts), top_k=self.top_k, shared_gate=self.shared is not None),
            Router(kernel_ops.packed(self.router)),
            held=held,
            gate_up=ExpertMatrices(tuple(first for first, _ in routed), gate_up),
            down=ExpertMatrices(tuple(second for _, second in routed), down),
        )

    def with_zeros_but_for(self, held: range) -> Model:
        zeros = [
            (gate, up, down if index in held else np.zeros_like(down))
            for index, (gate, up, down) in enumerate(self.experts)
        ]
        return replace(self, experts=tuple(zeros))

    def logprobs(
        self,
        held: range | None,
        format: Format,
        threads: int = 2,
        tokens: Sequence[int] = PROMPT,
        *,
        fuses: bool = True,
    ) -> list[tuple[int, float]]:
        """Of all tokens after the last one; without `held` there is no mixture in the program."""
        pages = -(-len(tokens) // PAGE_SIZE)
        setup = ProgramSetup(
            RankShape(self.hidden, [0, VOCAB], (CacheKind(Heads(1, 1, 32)),)),
            Capacity.of_program(pages * PAGE_SIZE, 16, 1, pages, pages),
            Ranks((threads,)),
        )
        b = ProgramBuilder(setup)
        norm = Vector(np.ones(self.hidden, np.float32))
        residual = b.embed(kernel_ops.packed(self.embedding), first_row=0)
        x = b.rms_norm(residual, norm, 1e-5)
        if held is not None:
            b.add_all_reduce(residual, self.append(b, x, held, format))
            x = b.rms_norm(residual, norm, 1e-5)
        b.sample(b.lm_head(x, kernel_ops.packed(self.head)))
        program = make_program(setup, b.fused() if fuses else b.operations, Team([-1] * threads))
        program.init_slot(0, operation_fields.GREEDY | {"num_logprobs": VOCAB})
        program.append_pages(0, range(pages))
        plan = np.array([(0, 0, len(tokens), 0, 1, 0)], np.int32)
        results, *_ = program.step(plan, np.array(tokens, np.int32), NONE)
        ((_, sampled, *_),) = results
        assert sampled is not None
        return list(zip(sampled[2], sampled[3], strict=True))


def _mlp(
    parts: tuple[reference.U16, reference.U16, reference.U16], format: Format
) -> tuple[PackedMatrix, PackedMatrix]:
    """Gate and up, and down."""

    def packed(*parts: reference.U16) -> PackedMatrix:
        made = {"weights": format.weights, "group": format.group, "activations": format.activations}
        return kernel_ops.packed(*parts, **made)

    return packed(*parts[:2]), packed(parts[2])


def make_model(
    rng: np.random.Generator, *, shared: bool, experts: int = EXPERTS, hidden: int = HIDDEN, top_k: int = 3
) -> Model:
    def weight(n: int, k: int) -> reference.U16:
        return reference.to_bf16(rng.standard_normal((n, k)) * k**-0.5)

    def mlp(inner: int) -> tuple[reference.U16, reference.U16, reference.U16]:
        return weight(inner, hidden), weight(inner, hidden), weight(hidden, inner)

    return Model(
        embedding=weight(VOCAB, hidden),
        router=weight(experts + shared, hidden),
        experts=tuple(mlp(INNER) for _ in range(experts)),
        shared=mlp(SHARED) if shared else None,
        head=weight(VOCAB, hidden),
        top_k=top_k,
    )


@pytest.mark.parametrize("format", FORMATS, ids=str)
@pytest.mark.parametrize("held", [range(2), range(1, 4), range(4, 5), range(5, 5)], ids=str)
@pytest.mark.parametrize("shared", [False, True])
def test_experts_of_other_ranks_add_nothing(
    rng: np.random.Generator, shared: bool, held: range, format: Format
) -> None:
    model = make_model(rng, shared=shared)
    whole, found = range(EXPERTS), model.logprobs(held, format)
    assert found == model.with_zeros_but_for(held).logprobs(whole, format)
    assert found != model.logprobs(whole, format)
    assert found == model.logprobs(held, format, threads=1)


def test_a_rank_without_any_expert_changes_nothing(rng: np.random.Generator) -> None:
    model = make_model(rng, shared=False)
    assert model.logprobs(range(5, 5), Format()) == model.logprobs(None, Format())
    assert model.logprobs(range(5), Format()) != model.logprobs(None, Format())


@pytest.mark.parametrize("format", FORMATS, ids=str)
@pytest.mark.parametrize("held", [range(16), range(1), range(15, 16), range(14, 16), range(3, 9)], ids=str)
def test_tokens_that_are_no_numbers_take_no_more_room_than_others(
    rng: np.random.Generator, held: range, format: Format
) -> None:
    model = make_model(rng, shared=False, experts=16)
    model.embedding[3] = 0x7FC0  # NaN
    expected = model.logprobs(held, format, tokens=[5] * 31 + [7])
    assert np.isfinite([value for _, value in expected]).all()
    assert model.logprobs(held, format, tokens=[3] * 31 + [7]) == expected


@pytest.mark.parametrize("format", FORMATS, ids=str)
@pytest.mark.parametrize("held", [range(5), range(1, 4), range(4, 5), range(5, 5)], ids=str)
def test_the_tiles_of_the_last_expert_end_in_its_matrix(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, held: range, format: Format
) -> None:
    """Whatever its first row: a tile has 16 rows, and an expert may have one."""
    limit = 32
    needed: list[tuple[Buffer, int]] = []
    fused = ProgramBuilder.fused

    def watched(self: ProgramBuilder) -> list[Operation]:
        products = [each for each in self.operations if isinstance(each, MultiplyExperts)]
        needed.extend((each.x, limit * min(3, len(held)) + 15) for each in products)
        return fused(self)

    monkeypatch.setattr(ProgramBuilder, "fused", watched)
    make_model(rng, shared=True).logprobs(held, format)
    assert len(needed) == 2
    for matrix, rows in needed:
        assert matrix.nbytes >= rows * matrix.ld * matrix.itemsize


@pytest.mark.parametrize("format", [Format(), Format("int8")], ids=str)
@pytest.mark.parametrize(("experts", "top_k"), [(16, 8), (6, 2)])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("fuses", [False, True])
@pytest.mark.parametrize("threads", [1, 2, 7])
def test_results_of_many_rows_are_summed_like_those_of_one(
    rng: np.random.Generator, threads: int, fuses: bool, shared: bool, experts: int, top_k: int, format: Format
) -> None:
    """From 16 MB of results on, a thread adds the results of its columns to the sums of all tokens at once."""
    model = make_model(rng, shared=shared, experts=experts, hidden=1024, top_k=top_k)
    rows = (16 << 20) // (model.hidden * top_k * 4) + 7
    tokens = [int(token) for token in rng.integers(VOCAB, size=rows)]
    found = model.logprobs(range(experts), format, threads, tokens, fuses=fuses)
    assert found == model.logprobs(range(experts), format, 1, tokens[-1:])
