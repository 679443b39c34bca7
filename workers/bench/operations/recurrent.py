"""Gated delta networks with heads of Qwen3.5's sizes, state spaces with heads of Nemotron's, and Kimi Delta Attention:
the convolution, the rule, and the gate."""

from dataclasses import dataclass
from math import inf
from typing import Any, Literal

import numpy as np
from numaserve.kernels import Program, Team, Vector
from numaserve.workers.bench.meter import Meter
from numaserve.workers.bench.programs import (
    SlotTokens,
    begin,
    built,
    copies_beyond_caches,
    make_builder,
    ones,
    random_matrix,
    spent_in_step,
    start_slot,
    step,
)
from numaserve.workers.bench.rows import Effort, Rows, Work, timed_row
from numaserve.workers.interface.protocol import PAGE_SIZE
from numaserve.workers.program.caches import CacheIndex, DeltaHeads, StateKind
from numaserve.workers.program.cost import BF16, FP32
from numaserve.workers.program.handles import round_up
from numaserve.workers.program.ops.recurrent import conv_bytes

_KEYS, _DIM, _TAPS = 16, 128, 4
_GROUPS, _SPACE_DIM = 8, 64  # of state spaces: heads that share B and C, and columns of a head
_STEPS = 64  # of a sequence
_HIDDEN = 32  # of the program; operations before the convolution do not matter


@dataclass(frozen=True)
class DeltaCase:
    """`new` tokens of each of some sequences in a layer with `values` value heads that follow a `rule`."""

    values: int
    new: int = 1
    sequences: int = 1
    rule: Literal["gated_delta", "state_space", "key_delta"] = "gated_delta"

    @property
    def heads(self) -> DeltaHeads:
        """The heads of the layer."""
        if self.rule == "state_space":
            return DeltaHeads(_GROUPS, self.values, _DIM, _SPACE_DIM, gates=1)
        if self.rule == "key_delta":
            return DeltaHeads(self.values, self.values, _DIM, _DIM, gates=1 + _DIM)
        return DeltaHeads(_KEYS, self.values, _DIM, _DIM)

    @property
    def nodes(self) -> tuple[str, ...]:
        """The convolution, what makes decays where an operation does, the rule, and the gate."""
        decays = ("key_decays",) if self.rule == "key_delta" else ()
        return "causal_conv", *decays, self.rule, "multiply" if self.rule == "state_space" else "gated_head_norm"


def bench_recurrent(meter: Meter, effort: Effort, *, case: DeltaCase) -> Rows:
    """Measure the operations of one layer; the convolution and the norm are small operations on each token.

    A token reads and writes its state. Many layers, rather than evicted states, make it pay for the writes too. Many
    tokens are bound by computing.
    """
    heads, tokens = case.heads, case.new * case.sequences
    layers = copies_beyond_caches(case.sequences * heads.kept * FP32) if case.new == 1 else 1
    program = _program(meter.team, heads, case, layers)
    walk = _Walk(program, case)
    outputs = heads.values * heads.value_dim
    nbytes_of = {
        "causal_conv": conv_bytes(heads.convolved, _TAPS).of((1, case.sequences, tokens, 0, 0, 0)),
        "gated_head_norm": outputs * (2 * FP32 + BF16) * tokens,
        "multiply": 3 * outputs * FP32 * tokens,
        "key_decays": 2 * heads.gates * heads.values * FP32 * tokens,
    }
    done = spent_in_step(program, case.nodes, walk.next())
    with meter.around("bf16", "fp32") as ceiling:
        found = effort.repeat(lambda: meter.seconds(program, case.nodes, walk.next(), []))
    for node, spent, repeated in zip(case.nodes, done, found, strict=True):
        times = repeated.per(layers)
        if node in nbytes_of:
            what: dict[str, str | int] = {"model": f"{case.values} value heads", "operation": node, "rows": tokens}
            yield timed_row("small operations", what, times, Work(nbytes_of[node]), ceiling.best)
            continue
        work = Work(spent.nbytes / layers, spent.flops / layers, "fp32")
        yield timed_row("recurrent", dict(vars(case)), times, work, ceiling.best)


class _Walk:
    """The steps of some sequences, which go on only from where their states are."""

    def __init__(self, program: Program, case: DeltaCase) -> None:
        self._program, self._case = program, case
        self._begin()

    def next(self) -> list[SlotTokens]:
        """The next step. A sequence at the end of its context begins again, in a step that is not counted."""
        if self._at + self._case.new > _context(self._case):
            self._begin()
        self._at += self._case.new
        return self._tokens(self._at - self._case.new)

    def _begin(self) -> None:
        self._at, pages = self._case.new, -(-_context(self._case) // PAGE_SIZE)
        for slot in range(self._case.sequences):
            start_slot(self._program, slot, range(slot * pages, (slot + 1) * pages))
        step(self._program, self._tokens(0))

    def _tokens(self, start: int) -> list[SlotTokens]:
        return [(slot, start, self._case.new, 0) for slot in range(self._case.sequences)]


def _context(case: DeltaCase) -> int:
    return _STEPS * case.new


def _program(team: Team, heads: DeltaHeads, case: DeltaCase, layers: int) -> Program:
    offset = round_up(FP32 * (_TAPS - 1) * heads.convolved, 64)
    state = StateKind(offset + round_up(FP32 * heads.kept, 64), layers=layers)
    b = make_builder(
        team,
        hidden=_HIDDEN,
        step_tokens=case.new * case.sequences,
        slots=case.sequences,
        context=_context(case),
        states=(state,),
    )
    outputs, taps = heads.values * heads.value_dim, ones(_TAPS * heads.convolved)
    decay, bias = Vector(np.full(heads.values, -0.05, np.float32)), ones(heads.values)
    key_bias = ones(heads.values * heads.key_dim)
    qkvz, gates = (
        random_matrix(team, heads.convolved + outputs, _HIDDEN),
        random_matrix(team, heads.gates * heads.values, _HIDDEN),
    )
    _, x = begin(b, team)
    made, gate = b.linear(x, qkvz), b.linear(x, gates)
    _, z = b.split(made, heads.convolved)
    for layer in range(layers):
        index = CacheIndex(0, layer)
        convolved = b.causal_conv(made, taps, taps=_TAPS, state=index, activation="silu")
        at: dict[str, Any] = {"decay": decay, "heads": heads, "state": index, "offset": offset}
        if case.rule == "state_space":
            b.multiply(b.state_space(convolved, gate, step_bias=bias, skip=bias, steps=(0.0, inf), **at), z, "silu")
            continue
        if case.rule == "key_delta":
            beta, decays = b.split(gate, heads.values)
            out = b.key_delta(convolved, beta, decays, decay_bias=key_bias, **at)
        else:
            out = b.gated_delta(convolved, gate, decay_bias=bias, **at)
        b.gated_head_norm(out, z, ones(heads.value_dim), eps=1e-6, heads=heads.values)
    return built(b, team)
