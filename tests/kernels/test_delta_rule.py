"""The gated delta rule, and the states that it keeps of each sequence."""

import kernel_ops
import kernel_reference as reference
import numpy as np
import pytest
from delta_strips import ALL, F64, MODEL, OTHER, SLOT, SNAPSHOT, TOKENS, Sizes, Strips


class Rule(Strips):
    """The gated delta rule of a sequence."""

    def __init__(self, rng: np.random.Generator, sizes: Sizes, tokens: int = TOKENS) -> None:
        super().__init__(rng, sizes, tokens, gates=2)

    def expected(self) -> tuple[F64, F64]:
        """The results in float64, and the bound of their rounding errors.

        A state's columns, multiplied by g (I - beta k k^T) of a k of length 1, become no longer: errors add up. Each
        token adds some units of rounding of the longest column so far and of its value, and the product with a key.
        """
        s, gates = self.sizes, self.gates.astype(np.float64)
        decays = np.exp(self.decay * np.logaddexp(0, gates[:, s.heads :] + self.decay_bias))
        return delta_rule(s, self.x, gates[:, : s.heads], decays[:, :, None])


def delta_rule(s: Sizes, inputs: np.ndarray, rates: F64, decays: F64) -> tuple[F64, F64]:
    """The results in float64, and the bound of their rounding errors. `rates` are before their sigmoid, and `decays`
    are [tokens, heads, dimensions of keys, or 1 for all of them]."""
    x, keys = inputs.astype(np.float64), s.key_heads * s.key_dim
    q, k = (
        normalised(part.reshape(-1, s.key_heads, s.key_dim)).repeat(s.heads // s.key_heads, 1)
        for part in (x[:, :keys], x[:, keys : 2 * keys])
    )
    q, beta = q / np.sqrt(s.key_dim), 1 / (1 + np.exp(-rates))
    v = x[:, 2 * keys :].reshape(-1, s.heads, s.value_dim)
    state, longest = np.zeros((s.heads, s.key_dim, s.value_dim)), np.zeros((s.heads, s.value_dim))
    results, bounds = np.zeros_like(v), np.zeros_like(v)
    unit = 2 * reference.accumulation(s.key_dim) + 24 * reference.FP32
    for t in range(len(x)):
        state *= decays[t][:, :, None]
        u = beta[t][:, None] * (v[t] - np.einsum("hkv,hk->hv", state, k[t]))
        state += np.einsum("hk,hv->hkv", k[t], u)
        longest = np.maximum(longest, np.linalg.norm(state, axis=1)) + np.abs(v[t]) / (t + 1)
        results[t] = np.einsum("hkv,hk->hv", state, q[t])
        bounds[t] = (t + 2) * unit * longest / np.sqrt(s.key_dim)
    return results.reshape(len(x), -1), bounds.reshape(len(x), -1)


def normalised(x: F64) -> F64:
    return x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6)


@pytest.mark.parametrize("sizes", ALL, ids=str)
def test_a_sequence_is_within_its_rounding_error(isa: str, rng: np.random.Generator, sizes: Sizes) -> None:
    rule = Rule(rng, sizes)
    kernel_ops.assert_within(rule.whole(isa)[0], *rule.expected())


@pytest.mark.parametrize("sizes", ALL, ids=str)
def test_a_sequence_has_the_same_bits_wherever_steps_cut_it(isa: str, rng: np.random.Generator, sizes: Sizes) -> None:
    Rule(rng, sizes).assert_same_bits_in_steps(isa)


def test_every_cut_of_a_model_has_the_same_bits(isa: str, rng: np.random.Generator) -> None:
    rule = Rule(rng, MODEL, tokens=130)
    whole, last = rule.whole(isa)
    for cut in range(1, 130):
        states = rule.states()
        found = rule.run(isa, [(0, cut, -1, SNAPSHOT), (cut, 130 - cut, SNAPSHOT, SLOT)], states)
        np.testing.assert_array_equal(found, whole)
        np.testing.assert_array_equal(states[SLOT], last)


def test_half_strips_have_the_same_bits(isa: str, rng: np.random.Generator) -> None:
    for sizes in ALL:
        rule = Rule(rng, sizes)
        for whole, half in zip(rule.whole(isa), rule.whole(isa, columns=16), strict=True):
            np.testing.assert_array_equal(half, whole)


@pytest.mark.parametrize(("columns", "strips"), [(32, 2), (32, 4), (16, 3)])
def test_strips_of_an_item_have_the_bits_that_each_has_alone(
    isa: str, rng: np.random.Generator, columns: int, strips: int
) -> None:
    segments = [(0, 3, -1, SNAPSHOT), (3, 1, SNAPSHOT, SLOT), (4, 0, SLOT, OTHER), (4, TOKENS - 4, SLOT, SLOT)]
    for sizes in ALL:
        rule = Rule(rng, sizes)
        states, together = rule.states(), rule.states()
        alone = rule.run(isa, segments, states)
        np.testing.assert_array_equal(rule.run(isa, segments, together, columns=columns, strips=strips), alone)
        np.testing.assert_array_equal(together, states)


def test_a_snapshot_is_the_state_of_its_position(isa: str, rng: np.random.Generator) -> None:
    for sizes in ALL:
        rule, states = Rule(rng, sizes), (rule := Rule(rng, sizes)).states()
        rule.run(isa, [(0, 20, -1, SNAPSHOT), (20, TOKENS - 20, SNAPSHOT, SLOT)], states)
        kept = states[SNAPSHOT].copy()
        rule.run(isa, [(0, 20, -1, OTHER)], states)
        np.testing.assert_array_equal(states[OTHER], kept)
        rest = rule.run(isa, [(20, TOKENS - 20, SNAPSHOT, OTHER)], states)
        np.testing.assert_array_equal(rest[20:], rule.whole(isa)[0][20:])
        np.testing.assert_array_equal(states[SNAPSHOT], kept)
        np.testing.assert_array_equal(states[OTHER], states[SLOT])


def test_a_segment_without_tokens_copies_the_state(isa: str, rng: np.random.Generator) -> None:
    for sizes in ALL:
        rule = Rule(rng, sizes)
        states = rule.states()
        rule.run(isa, [(0, TOKENS, -1, SNAPSHOT), (TOKENS, 0, SNAPSHOT, SLOT)], states)
        np.testing.assert_array_equal(states[SLOT], rule.whole(isa)[1])
        rule.run(isa, [(0, 0, SLOT, SLOT), (0, 0, -1, OTHER)], states)
        np.testing.assert_array_equal(states[SLOT], states[SNAPSHOT])
        matrices = rule.sizes.heads * rule.sizes.key_dim * rule.sizes.value_dim
        assert not states[OTHER, :matrices].any()


def test_gates_may_have_any_value(isa: str, rng: np.random.Generator) -> None:
    rule = Rule(rng, Sizes(1, 4, 16, 16))
    rule.gates[:] = rng.choice([-1e30, -200, -90, -20, 0, 20, 90, 200, 1e30], rule.gates.shape)
    rule.decay[:] = [-1e-6, -1, -100, 0]
    with np.errstate(over="ignore"):
        kernel_ops.assert_within(rule.whole(isa)[0], *rule.expected())


def test_keys_of_zeros_are_no_division_by_zero(isa: str, rng: np.random.Generator) -> None:
    rule = Rule(rng, Sizes(1, 1, 24, 24))
    rule.x[::3, :48] = 0
    kernel_ops.assert_within(rule.whole(isa)[0], *rule.expected())


def test_a_token_that_is_no_number_stays_in_its_sequence(isa: str, rng: np.random.Generator) -> None:
    rule = Rule(rng, MODEL)
    clean, states = rule.whole(isa)[0], rule.states()
    spoiled = Rule(np.random.default_rng(1), MODEL)
    spoiled.x[5, 2 * 128 + 3] = np.nan  # of a key
    assert np.isnan(spoiled.run(isa, [(0, TOKENS, -1, SLOT)], states)[5:, : MODEL.value_dim]).all()
    np.testing.assert_array_equal(rule.run(isa, [(0, TOKENS, -1, SLOT)], states), clean)
