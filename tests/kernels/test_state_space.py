"""The selective state space of Mamba-2, over the states of the gated delta rule."""

from typing import Any

import kernel_ops
import kernel_reference as reference
import numpy as np
import pytest
from delta_strips import ALL, F64, MODEL, OTHER, SLOT, SNAPSHOT, TOKENS, Sizes, Strips


class Space(Strips):
    """A state space of a sequence."""

    def __init__(self, rng: np.random.Generator, sizes: Sizes, tokens: int = TOKENS) -> None:
        super().__init__(rng, sizes, tokens, gates=1)
        self.skip = rng.standard_normal(sizes.heads).astype(np.float32)
        self.steps = np.array([0.0, np.inf], np.float32)

    def more(self) -> tuple[Any, ...]:
        """See `Strips`."""
        return self.skip, self.steps

    def expected(self) -> tuple[F64, F64]:
        """The results in float64, and the bound of their rounding errors.

        Each token adds some units of rounding of the sum of the absolute values that a state has ever summed, which
        decay no slower than the state.
        """
        s = self.sizes
        x, keys = self.x.astype(np.float64), s.key_heads * s.key_dim
        group = s.heads // s.key_heads
        c, b = (
            part.reshape(-1, s.key_heads, s.key_dim).repeat(group, 1) for part in (x[:, :keys], x[:, keys : 2 * keys])
        )
        v = x[:, 2 * keys :].reshape(-1, s.heads, s.value_dim)
        step = np.logaddexp(0, self.gates.astype(np.float64) + self.decay_bias).clip(*self.steps.astype(np.float64))
        decay = np.exp(self.decay * step)
        state, size = np.zeros((2, s.heads, s.key_dim, s.value_dim))
        results, bounds = np.zeros_like(v), np.zeros_like(v)
        unit = reference.accumulation(s.key_dim) + 24 * reference.FP32
        for t in range(len(x)):
            added = np.einsum("hk,hv->hkv", b[t], step[t][:, None] * v[t])
            state, size = (
                decay[t][:, None, None] * state + added,
                np.maximum(decay[t], 0.9)[:, None, None] * size + np.abs(added),
            )
            results[t] = np.einsum("hkv,hk->hv", state, c[t]) + self.skip[:, None] * v[t]
            bounds[t] = np.einsum("hkv,hk->hv", size, np.abs(c[t])) + np.abs(self.skip[:, None] * v[t])
        return results.reshape(len(x), -1), (len(x) * unit * bounds + 1e-37).reshape(len(x), -1)


@pytest.mark.parametrize("sizes", ALL, ids=str)
def test_a_sequence_is_within_its_error(isa: str, rng: np.random.Generator, sizes: Sizes) -> None:
    space = Space(rng, sizes)
    kernel_ops.assert_within(space.whole(isa)[0], *space.expected())


@pytest.mark.parametrize("steps", [(0.0, 0.5), (2.0, np.inf), (1.0, 1.0)])
def test_steps_are_kept_within_their_range(isa: str, rng: np.random.Generator, steps: tuple[float, float]) -> None:
    space = Space(rng, MODEL)
    space.steps[:] = steps
    kernel_ops.assert_within(space.whole(isa)[0], *space.expected())


@pytest.mark.parametrize("sizes", ALL, ids=str)
def test_a_sequence_has_the_same_bits_wherever_it_is_cut(isa: str, rng: np.random.Generator, sizes: Sizes) -> None:
    Space(rng, sizes).assert_same_bits_in_steps(isa)


def test_halves_of_strips_and_several_have_the_same_bits(isa: str, rng: np.random.Generator) -> None:
    for sizes in ALL:
        space = Space(rng, sizes)
        for cut in ({"columns": 16}, {"strips": 3}):
            for whole, other in zip(space.whole(isa), space.whole(isa, **cut), strict=True):
                np.testing.assert_array_equal(other, whole)


def test_a_sequence_goes_on_from_a_snapshot(isa: str, rng: np.random.Generator) -> None:
    for sizes in ALL:
        space, states = Space(rng, sizes), (space := Space(rng, sizes)).states()
        space.run(isa, [(0, 20, -1, SNAPSHOT), (20, TOKENS - 20, SNAPSHOT, SLOT)], states)
        rest = space.run(isa, [(20, TOKENS - 20, SNAPSHOT, OTHER)], states)
        np.testing.assert_array_equal(rest[20:], space.whole(isa)[0][20:])
        np.testing.assert_array_equal(states[OTHER], states[SLOT])


def test_steps_may_have_any_size(isa: str, rng: np.random.Generator) -> None:
    space = Space(rng, Sizes(1, 4, 16, 16))
    space.gates[:] = rng.choice([-1e30, -200, -90, -20, 0, 20, 90, 200], space.gates.shape)
    space.decay[:] = [-1e-6, -1, -100, -0.5]
    kernel_ops.assert_within(space.whole(isa)[0], *space.expected())


def test_a_token_that_is_no_number_stays_where_it_is(isa: str, rng: np.random.Generator) -> None:
    space = Space(rng, MODEL)
    clean, states = space.whole(isa)[0], space.states()
    spoiled = Space(np.random.default_rng(1), MODEL)
    spoiled.x[5, 2 * 128 + 3] = np.nan  # of B
    assert np.isnan(spoiled.run(isa, [(0, TOKENS, -1, SLOT)], states)[5:, : MODEL.value_dim]).all()
    np.testing.assert_array_equal(space.run(isa, [(0, TOKENS, -1, SLOT)], states), clean)
