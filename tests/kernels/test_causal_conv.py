"""The causal convolution, and the state that it keeps of each sequence."""

import itertools

import kernel_ops
import kernel_reference as reference
import numpy as np
import numpy.typing as npt
import pytest
from numaserve_kernel_tests import causal_conv

Floats = npt.NDArray[np.float32]
GARBAGE = np.float32(1e30)


class Conv:
    """A convolution with random weights [taps, columns]."""

    def __init__(
        self, rng: np.random.Generator, taps: int, cols: int, *, silu: bool = False, bias: bool = True
    ) -> None:
        self.weight = rng.standard_normal((taps, cols)).astype(np.float32)
        self.bias = rng.standard_normal(cols).astype(np.float32) if bias else None
        self.silu = silu

    def state(self) -> Floats:
        """The state that an earlier sequence left: the rule for position 0 must hide it."""
        return np.full((len(self.weight) - 1, self.weight.shape[1]), GARBAGE)

    def run(self, isa: str, x: Floats, state: Floats, *, begins: bool, threads: int = 1) -> Floats:
        """The result, with `state` before and after it. `x` has columns that are not convolved."""
        cols, out = self.weight.shape[1], np.full((len(x), -(-self.weight.shape[1] // 32) * 32), GARBAGE)
        wider = np.hstack([x, np.full((len(x), 3), np.nan, np.float32)])
        causal_conv(isa, wider, self.weight, self.bias, self.silu, None if begins else state, state, out, threads)
        assert (out[:, cols:] == 0).all()
        return out[:, :cols]

    def expected(self, x: Floats) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """The result in float64, and the bound of its rounding error in fp32."""
        behind = len(self.weight) - 1
        padded = np.concatenate([np.zeros((behind, x.shape[1])), x.astype(np.float64)])
        terms = np.stack([padded[j : j + len(x)] * self.weight[j].astype(np.float64) for j in range(behind + 1)])
        bias = 0.0 if self.bias is None else self.bias.astype(np.float64)
        value, size = terms.sum(0) + bias, np.abs(terms).sum(0) + np.abs(bias)
        bound = (behind + 2) * reference.FP32 * size
        if self.silu:  # its slope is below 1.1; a division and an exponential add some roundings
            value = value / (1 + np.exp(-value))
            bound = 1.1 * bound + 8 * reference.FP32 * np.abs(value)
        return value, bound


@pytest.mark.parametrize(("taps", "cols"), [(2, 1), (3, 40), (4, 96), (7, 33), (8, 17)])
@pytest.mark.parametrize("silu", [False, True])
@pytest.mark.parametrize("threads", [1, 3])
def test_each_column_is_convolved_within_its_rounding_error(
    isa: str, rng: np.random.Generator, taps: int, cols: int, silu: bool, threads: int
) -> None:
    conv, x = Conv(rng, taps, cols, silu=silu), rng.standard_normal((21, cols)).astype(np.float32)
    result = conv.run(isa, x, conv.state(), begins=True, threads=threads)
    kernel_ops.assert_within(result, *conv.expected(x))


@pytest.mark.parametrize("taps", [2, 4, 8])
def test_a_sequence_has_the_same_bits_wherever_steps_cut_it(isa: str, rng: np.random.Generator, taps: int) -> None:
    conv, x = Conv(rng, taps, 150, silu=True, bias=False), rng.standard_normal((19, 150)).astype(np.float32)
    whole = conv.run(isa, x, last := conv.state(), begins=True)
    np.testing.assert_array_equal(last, x[-(taps - 1) :])
    for cuts in ([1], [2, 3], [7, 8, 9, 18], range(1, 19)):
        state, parts = conv.state(), []
        for begin, end in itertools.pairwise([0, *cuts, len(x)]):
            parts.append(conv.run(isa, x[begin:end], state, begins=begin == 0, threads=2))
        np.testing.assert_array_equal(np.concatenate(parts), whole)
        np.testing.assert_array_equal(state, last)


def test_the_states_before_and_after_may_lie_apart(isa: str, rng: np.random.Generator) -> None:
    conv, x = Conv(rng, 4, 50), rng.standard_normal((9, 50)).astype(np.float32)
    conv.run(isa, x[:5], before := conv.state(), begins=True)
    kept, after, out = before.copy(), conv.state(), np.empty((4, 64), np.float32)
    causal_conv(isa, x[5:], conv.weight, conv.bias, conv.silu, before, after, out, 2)
    np.testing.assert_array_equal(before, kept)
    np.testing.assert_array_equal(after, x[-3:])
    causal_conv(isa, x[:0], conv.weight, conv.bias, conv.silu, after, before, out[:0], 2)
    np.testing.assert_array_equal(before, x[-3:])
