"""Cases of operations that keep a state of each sequence."""

from dataclasses import dataclass
from itertools import product

import numpy as np
from kernel_reference import F64, FP32, Bounded, accumulation
from numaserve.kernels import Vector
from numaserve.workers.program.buffers import Buffer, Tensor
from numaserve.workers.program.caches import DeltaHeads, StateKind
from numaserve.workers.program.ops.recurrent import KeyDelta
from numaserve.workers.program.recording.builder import ProgramBuilder
from one_operation import LAYER, Case, normal, table

Rng = np.random.Generator
TOKENS = 37
# Key heads, value heads, and the dimensions of each.
MODEL = (2, 4, 128, 128)
SIZES = [MODEL, (1, 1, 16, 32), (1, 3, 24, 40), (2, 2, 7, 5), (1, 2, 33, 16), (1, 1, 1, 1), (1, 2, 64, 48)]
WIDE = [-1e30, -200, -90, -20, 0, 20, 90, 200, 1e30]


def causal_conv(rng: Rng, taps: int, cols: int, silu: bool, biased: bool) -> Case:
    """A convolution of the first columns, after others that must not count."""
    x, weight = np.full((21, cols + 3), np.nan, np.float32), normal(rng, cols, taps)
    x[:, :cols] = normal(rng, 21, cols)
    bias = normal(rng, cols) if biased else np.zeros(cols, np.float32)
    inputs = np.concatenate([np.zeros((taps - 1, cols)), x[:, :cols]])
    terms = np.stack([inputs[tap : tap + 21] * weight[:, tap].astype(np.float64) for tap in range(taps)])
    value, bound = terms.sum(0) + bias, (taps + 1) * FP32 * (np.abs(terms).sum(0) + np.abs(bias))
    if silu:  # its slope is below 1.1; a division and an exponential add some roundings
        value = value / (1 + np.exp(-value))
        bound = 1.1 * bound + 8 * FP32 * np.abs(value)
    kept = np.full((1, -(-(taps - 1) * cols // 16) * 16), np.nan)  # a state is whole cache lines
    kept[0, : (taps - 1) * cols] = inputs[-(taps - 1) :].reshape(-1)
    how = {"taps": taps, "state": LAYER, "activation": "silu" if silu else "none"}
    return Case(
        given={"x": x},
        states=(StateKind(4 * kept.size),),
        record=lambda b, x: b.causal_conv(x, Vector(weight.reshape(-1)), bias=Vector(bias) if biased else None, **how),
        expected=[(value, bound), (kept, 0.0)],
    )


@dataclass(frozen=True)
class Inputs:
    """Random tokens of a sequence, in float64, with `gates` for each head, and what the heads decay by."""

    heads: DeltaHeads
    x: F64
    gates: F64
    decay: F64
    bias: F64

    @classmethod
    def random(cls, rng: Rng, sizes: tuple[int, int, int, int], gates: int) -> "Inputs":
        heads = DeltaHeads(*sizes, gates)
        rows = normal(rng, TOKENS, heads.convolved), 3 * normal(rng, TOKENS, gates * heads.values)
        vectors = -np.exp(normal(rng, heads.values)), normal(rng, heads.values)
        return cls(heads, *(each.astype(np.float64) for each in (*rows, *vectors)))

    def parts(self) -> tuple[F64, F64, F64]:
        """Queries, keys and values of each value head, [tokens, value heads, dimensions]."""
        s, keys = self.heads, self.heads.keys * self.heads.key_dim
        q, k = (
            part.reshape(-1, s.keys, s.key_dim).repeat(s.values // s.keys, 1)
            for part in (self.x[:, :keys], self.x[:, keys : 2 * keys])
        )
        return q, k, self.x[:, 2 * keys :].reshape(-1, s.values, s.value_dim)

    def case(self, rule: str, expected: Bounded, **more: object) -> Case:
        """The case of a rule of the builder."""
        s = self.heads
        decay, bias = (Vector(each.astype(np.float32)) for each in (self.decay, self.bias))

        def record(b: ProgramBuilder, x: Tensor, gates: Tensor) -> Buffer:
            out = Tensor(x.rows, s.values * s.value_dim, 4)
            if rule == "key_delta":  # from decays that other operations make
                b.operations.append(KeyDelta(x=x, gates=gates, out=out, heads=s, state=LAYER, offset=0))
                return out
            name = "step_bias" if rule == "state_space" else "decay_bias"
            how = {"decay": decay, name: bias, "heads": s, "state": LAYER, "offset": 0}
            made: Buffer = getattr(b, rule)(x, gates, **how, **more)
            return made

        given = {"x": self.x.astype(np.float32), "gates": self.gates.astype(np.float32)}
        return Case(given=given, states=(StateKind(-(-4 * s.kept // 64) * 64),), record=record, expected=[expected])


def delta_rule(inputs: Inputs, rates: F64, decays: F64) -> Bounded:
    """The delta rule. `rates` are before their sigmoid, and `decays` are [tokens, heads, dimensions of keys, or 1 for
    all of them].

    A state's columns, multiplied by g (I - beta k k^T) of a k of length 1, become no longer: errors add up. Each token
    adds some units of rounding of the longest column so far and of its value, and the product with a key.
    """
    s, (q, k, v) = inputs.heads, inputs.parts()
    q, k = (each / np.sqrt((each * each).sum(-1, keepdims=True) + 1e-6) for each in (q, k))
    q, beta = q / np.sqrt(s.key_dim), 1 / (1 + np.exp(-rates))
    state, longest = np.zeros((s.values, s.key_dim, s.value_dim)), np.zeros((s.values, s.value_dim))
    results, bounds = np.zeros_like(v), np.zeros_like(v)
    unit = 2 * accumulation(s.key_dim) + 24 * FP32
    for t in range(len(v)):
        state *= decays[t][:, :, None]
        state += np.einsum("hk,hv->hkv", k[t], beta[t][:, None] * (v[t] - np.einsum("hkv,hk->hv", state, k[t])))
        longest = np.maximum(longest, np.linalg.norm(state, axis=1)) + np.abs(v[t]) / (t + 1)
        results[t] = np.einsum("hkv,hk->hv", state, q[t])
        bounds[t] = (t + 2) * unit * longest / np.sqrt(s.key_dim)
    return results.reshape(len(v), -1), bounds.reshape(len(v), -1)


def gated_delta(rng: Rng, sizes: tuple[int, int, int, int], change: str = "") -> Case:
    inputs = Inputs.random(rng, sizes, 2)
    heads, keys = inputs.heads.values, inputs.heads.keys * inputs.heads.key_dim
    if change == "any gates":
        inputs.gates[:] = rng.choice(WIDE, inputs.gates.shape)
        inputs.decay[:] = np.resize([-1e-6, -1, -100, 0], heads)
    elif change == "keys of zeros":
        inputs.x[::3, : 2 * keys] = 0
    elif change == "no number":
        inputs.x[5, keys + 3] = np.nan
    with np.errstate(over="ignore"):
        decays = np.exp(inputs.decay * np.logaddexp(0, inputs.gates[:, heads:] + inputs.bias))
        return inputs.case("gated_delta", delta_rule(inputs, inputs.gates[:, :heads], decays[:, :, None]))


def key_delta(rng: Rng, sizes: tuple[int, int, int, int], change: str = "") -> Case:
    """Dimensions decay a little, or are forgotten or kept."""
    inputs = Inputs.random(rng, sizes, 1 + sizes[2])
    s = inputs.heads
    shape = (TOKENS, s.values * s.key_dim)
    decays = rng.choice([0.0, 1e-38, 1e-5, 1.0], shape) if change == "any decays" else rng.random(shape) ** 0.2
    inputs.gates[:, s.values :] = decays = decays.astype(np.float32).astype(np.float64)
    expected = delta_rule(inputs, inputs.gates[:, : s.values], decays.reshape(-1, s.values, s.key_dim))
    return inputs.case("key_delta", expected)


def state_space(
    rng: Rng, sizes: tuple[int, int, int, int], steps: tuple[float, float] = (0.0, np.inf), change: str = ""
) -> Case:
    """The selective state space. Each token adds some units of rounding of the sum of the absolute values that a state
    has ever summed, which decay no slower than the state."""
    inputs = Inputs.random(rng, sizes, 1)
    s, skip = inputs.heads, normal(rng, inputs.heads.values)
    if change == "any steps":
        inputs.gates[:] = rng.choice(WIDE[:-1], inputs.gates.shape)
        inputs.decay[:] = np.resize([-1e-6, -1, -100, -0.5], s.values)
    elif change == "no number":
        inputs.x[5, s.keys * s.key_dim + 3] = np.nan
    c, b, v = inputs.parts()
    step = np.logaddexp(0, inputs.gates + inputs.bias).clip(*steps)
    decay = np.exp(inputs.decay * step)
    state, size = np.zeros((2, s.values, s.key_dim, s.value_dim))
    results, bounds = np.zeros_like(v), np.zeros_like(v)
    for t in range(TOKENS):
        added = np.einsum("hk,hv->hkv", b[t], step[t][:, None] * v[t])
        state = decay[t][:, None, None] * state + added
        size = np.maximum(decay[t], 0.9)[:, None, None] * size + np.abs(added)
        results[t] = np.einsum("hkv,hk->hv", state, c[t]) + skip[:, None] * v[t]
        bounds[t] = np.einsum("hkv,hk->hv", size, np.abs(c[t])) + np.abs(skip[:, None] * v[t])
    bounds = TOKENS * (accumulation(s.key_dim) + 24 * FP32) * bounds + 1e-37
    expected = results.reshape(TOKENS, -1), bounds.reshape(TOKENS, -1)
    return inputs.case("state_space", expected, skip=Vector(skip), steps=steps)


CASES = (
    table(causal_conv, *product((2, 8), (1, 17, 150), (False, True), (False, True)))
    | table(causal_conv, (3, 40, True, True), (4, 96, True, False), (4, 96, False, True), (7, 33, True, True))
    | table(gated_delta, *((sizes,) for sizes in SIZES), ((1, 4, 16, 16), "any gates"))
    | table(gated_delta, ((1, 1, 24, 24), "keys of zeros"), (MODEL, "no number"))
    | table(key_delta, *((sizes,) for sizes in SIZES), (MODEL, "any decays"))
    | table(state_space, *((sizes,) for sizes in SIZES), *((MODEL, each) for each in ((0.0, 0.5), (2.0, np.inf))))
    | table(state_space, (MODEL, (1.0, 1.0)), ((1, 4, 16, 16), (0.0, np.inf), "any steps"))
    | table(state_space, (MODEL, (0.0, np.inf), "no number"))
)
