"""The delta rule with a decay for each dimension of keys, over the states of the gated delta rule."""

import kernel_ops
import kernel_reference as reference
import numpy as np
import pytest
from delta_strips import ALL, F64, MODEL, OTHER, SLOT, SNAPSHOT, TOKENS, Sizes, Strips
from numaserve_kernel_tests import key_decays
from test_delta_rule import delta_rule


class KeyRule(Strips):
    """The rule of a sequence. Gates are rates and decays."""

    def __init__(self, rng: np.random.Generator, sizes: Sizes, tokens: int = TOKENS) -> None:
        super().__init__(rng, sizes, tokens, gates=1 + sizes.key_dim)
        self.decay_bias = np.empty(0, np.float32)  # decays are made before
        self.decays[:] = rng.random(self.decays.shape) ** 0.2

    @property
    def decays(self) -> np.ndarray:
        """The decays of each dimension of the keys of each head."""
        return self.gates[:, self.sizes.heads :]

    def expected(self) -> tuple[F64, F64]:
        """The results in float64, and the bound of their rounding errors, which is that of the gated delta rule: a
        state's columns become no longer."""
        s = self.sizes
        rates, decays = self.gates[:, : s.heads].astype(np.float64), self.decays.astype(np.float64)
        return delta_rule(s, self.x, rates, decays.reshape(-1, s.heads, s.key_dim))


@pytest.mark.parametrize("sizes", ALL, ids=str)
def test_a_sequence_is_as_near_as_it_can_be(isa: str, rng: np.random.Generator, sizes: Sizes) -> None:
    rule = KeyRule(rng, sizes)
    kernel_ops.assert_within(rule.whole(isa)[0], *rule.expected())


@pytest.mark.parametrize("sizes", ALL, ids=str)
def test_a_sequence_has_the_same_bits_however_it_is_cut(isa: str, rng: np.random.Generator, sizes: Sizes) -> None:
    KeyRule(rng, sizes).assert_same_bits_in_steps(isa)


def test_halves_of_strips_and_items_have_the_same_bits(isa: str, rng: np.random.Generator) -> None:
    for sizes in ALL:
        rule = KeyRule(rng, sizes)
        for cut in ({"columns": 16}, {"strips": 3}):
            for whole, other in zip(rule.whole(isa), rule.whole(isa, **cut), strict=True):
                np.testing.assert_array_equal(other, whole)


def test_a_snapshot_continues_a_sequence(isa: str, rng: np.random.Generator) -> None:
    for sizes in ALL:
        rule = KeyRule(rng, sizes)
        states = rule.states()
        rule.run(isa, [(0, 20, -1, SNAPSHOT), (20, TOKENS - 20, SNAPSHOT, SLOT)], states)
        rest = rule.run(isa, [(20, TOKENS - 20, SNAPSHOT, OTHER)], states)
        np.testing.assert_array_equal(rest[20:], rule.whole(isa)[0][20:])
        np.testing.assert_array_equal(states[OTHER], states[SLOT])


def test_dimensions_may_be_forgotten_or_kept(isa: str, rng: np.random.Generator) -> None:
    rule = KeyRule(rng, MODEL)
    rule.decays[:] = rng.choice([0.0, 1e-38, 1e-5, 1.0], rule.decays.shape)
    kernel_ops.assert_within(rule.whole(isa)[0], *rule.expected())


def test_equal_decays_of_a_head_are_the_gated_delta_rule(isa: str, rng: np.random.Generator) -> None:
    rule, s = KeyRule(rng, MODEL), MODEL
    decays = rng.random((TOKENS, s.heads)).astype(np.float32) * 0.9 + 0.05
    rule.decays[:] = decays.repeat(s.key_dim, 1)
    gated = Strips(rng, MODEL, TOKENS, gates=2)
    gated.x, gated.decay[:], gated.decay_bias[:] = rule.x, -1, 0
    gated.gates[:, : s.heads] = rule.gates[:, : s.heads]
    gated.gates[:, s.heads :] = np.log(np.expm1(-np.log(decays.astype(np.float64))))  # of which softplus is the step
    np.testing.assert_allclose(rule.whole(isa)[0], gated.whole(isa)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("heads", "dim"), [(3, 128), (2, 16), (5, 24), (3, 7), (1, 1), (0, 16)])
@pytest.mark.parametrize("threads", [1, 4])
def test_decays_follow_the_rates(isa: str, rng: np.random.Generator, heads: int, dim: int, threads: int) -> None:
    b, x = (rng.standard_normal((5, n)).astype(np.float32) * 20 for n in (heads, heads * dim))
    decay, bias = -np.exp(rng.standard_normal(heads)).astype(np.float32), rng.standard_normal(heads * dim)
    out = np.full((5, heads + heads * dim), np.nan, np.float32)
    key_decays(isa, b, x, decay, bias.astype(np.float32), dim, out, threads)
    np.testing.assert_array_equal(out[:, :heads], b)
    if not heads:
        return
    exponents = decay.astype(np.float64).repeat(dim) * np.logaddexp(0, x.astype(np.float64) + bias.astype(np.float32))
    value = np.exp(exponents)
    kernel_ops.assert_within(out[:, heads:], value, value * (1 + np.abs(exponents)) * 16 * reference.FP32 + 1e-37)
