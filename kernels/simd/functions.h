// Exponentials of sixteen lanes, and activations made of them.
#pragma once

#include "kernels/simd/f32x16.h"

namespace numaserve {
namespace {

// e^x to about 1 ulp for x <= 88; anything below -87.3 gives 0 (so that -inf masks exactly), NaN gives NaN. Cody-Waite
// reduction by ln 2 in two parts and a polynomial of degree 6 (coefficients of Cephes' expf).
inline F32x16 exp(F32x16 x) {
  const F32x16 clamped = F32x16::min(F32x16::max(x, F32x16::set1(-87.3f)), F32x16::set1(88.0f));
  const F32x16 n = (clamped * F32x16::set1(1.44269504f)).round();
  F32x16 r = F32x16::fma(n, F32x16::set1(-0.693359375f), clamped);
  r = F32x16::fma(n, F32x16::set1(2.12194440e-4f), r);
  F32x16 p = F32x16::set1(1.9875691500e-4f);
  p = F32x16::fma(p, r, F32x16::set1(1.3981999507e-3f));
  p = F32x16::fma(p, r, F32x16::set1(8.3334519073e-3f));
  p = F32x16::fma(p, r, F32x16::set1(4.1665795894e-2f));
  p = F32x16::fma(p, r, F32x16::set1(1.6666665459e-1f));
  p = F32x16::fma(p, r, F32x16::set1(5.0000001201e-1f));
  p = F32x16::fma(p, r * r, r + F32x16::set1(1.0f));
  // The maximum gives its second operand for a NaN.
  return (p * n.exp2_integral()).where_in(x, -87.3f, __builtin_inff(), F32x16::max(F32x16::zero(), x));
}

inline F32x16 sigmoid(F32x16 x) { return F32x16::set1(1.0f) / (F32x16::set1(1.0f) + exp(F32x16::zero() - x)); }

// x * sigmoid(x).
inline F32x16 silu(F32x16 x) { return x / (F32x16::set1(1.0f) + exp(F32x16::zero() - x)); }

// log(1 + e^x) to some ulp, NaN for NaN: the positive part of x, and log(1 + e) = 2 atanh(e / (2 + e)) for e = e^-|x|.
// The series in s <= 1/3 ends where its next term is below 1e-8 of the first. Below -87.3 the result is 0, as e is.
inline F32x16 softplus(F32x16 x) {
  const F32x16 e = exp(F32x16::min(x, F32x16::zero() - x));
  const F32x16 s = e / (F32x16::set1(2.0f) + e), square = s * s;
  F32x16 p = F32x16::set1(1.0f / 15);
  for (int odd = 13; odd > 1; odd -= 2) p = F32x16::fma(p, square, F32x16::set1(1.0f / static_cast<float>(odd)));
  const F32x16 twice = s + s;
  // The maximum gives its second operand for a NaN.
  return F32x16::max(F32x16::zero(), x) + F32x16::fma(twice * square, p, twice);
}

// 2^x to a relative 9e-5 for x <= 1, zero for minus infinity, NaN for NaN. For probabilities, which are then rounded to
// bf16 (4e-3). A polynomial of degree 3 (minimax over [0, 1), exact at 0); the one of `exp` would cost twice as many
// instructions. With `kForTruncation`, half of bf16's last bit is added before multiplying by the power of two, at no
// cost. Dropping the lower bits then gives the nearest bf16.
template <bool kForTruncation>
inline F32x16 exp2_probability(F32x16 x) {
  const F32x16 r = x.fraction();
  F32x16 p = F32x16::set1(7.70665302e-2f);
  p = F32x16::fma(p, r, F32x16::set1(2.27645710e-1f));
  p = F32x16::fma(p, r, F32x16::set1(6.95116602e-1f));
  return F32x16::fma(p, r, F32x16::set1(kForTruncation ? 1.0f + 0x1p-8f : 1.0f)).times_exp2_floor(x);
}

// tanh through exp of a negative argument, so that nothing overflows: sign(x) (1 - e) / (1 + e), e = exp(-2|x|).
inline F32x16 tanh(F32x16 x) {
  const F32x16 magnitude = F32x16::max(x, F32x16::zero() - x);
  const F32x16 e = exp(magnitude * F32x16::set1(-2.0f));
  const F32x16 t = (F32x16::set1(1.0f) - e) / (F32x16::set1(1.0f) + e);
  return (F32x16::zero() - t).where_in(x, -__builtin_inff(), 0.0f, t);
}

// GELU (Hendrycks and Gimpel, 2016): x * Phi(x) = max(x, 0) - |x| / 2 * erfc(|x| / sqrt(2)), to an absolute 1e-7 * |x|.
// erfc by the polynomial 7.1.26 of Abramowitz and Stegun.
inline F32x16 gelu(F32x16 x) {
  const F32x16 magnitude = F32x16::max(x, F32x16::zero() - x), one = F32x16::set1(1.0f);
  const F32x16 t = one / F32x16::fma(magnitude, F32x16::set1(0.3275911f * 0.70710678f), one);
  F32x16 p = F32x16::set1(1.061405429f);
  constexpr float kCoefficients[] = {-1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f};
  for (const float coefficient : kCoefficients) p = F32x16::fma(p, t, F32x16::set1(coefficient));
  const F32x16 tail = p * t * exp(magnitude * magnitude * F32x16::set1(-0.5f));
  // The maximum gives its second operand for a NaN.
  return F32x16::max(F32x16::zero(), x) - F32x16::set1(0.5f) * magnitude * tail;
}

}  // namespace
}  // namespace numaserve
