// The selective state space of Mamba-2 (Dao and Gu, 2024), token by token in fp32, over the strips, states, segments
// and draft tokens of the gated delta rule: keys are B, queries C, and values the inputs x.
//
//   dt = clamp(softplus(dt + bias));  S = exp(decay dt) S + dt B x^T;  out = S^T C + skip x
//
// A state learns its input whatever it knows. A token therefore needs no product with the state before it.
#pragma once

#include "kernels/include/kernel_table.h"
#include "kernels/ops/gated_delta.inl"

namespace numaserve {
namespace {

// The factors of some tokens of a head, from the one with these gates on.
struct SpaceFactors {
  const float* gates = nullptr;
  alignas(64) float decay[kDeltaTokens];
  alignas(64) float step[kDeltaTokens];  // dt
};

inline void space_factors(const DeltaArgs& a, int32_t head, const DeltaRows& first, int rows, SpaceFactors& factors) {
  if (factors.gates == first.gates) return;
  factors.gates = first.gates;
  const F32x16 step = softplus(gate_of(first.gates, first.ldg, rows) + F32x16::set1(a.decay_bias[head]));
  // The second operand is the result where either is not a number.
  const F32x16 clamped = F32x16::min(F32x16::set1(a.most_step), F32x16::max(F32x16::set1(a.least_step), step));
  exp(F32x16::set1(a.decay[head]) * clamped).store(factors.decay);
  clamped.store(factors.step);
}

struct StateSpace {
  using Factors = SpaceFactors;
  // A token. `fetched` has rows to fetch. Returns the scale after the token.
  template <int kVectors, bool kWhole>
  static float token(const Strip<kVectors, kWhole>& strip, const float* from, float* to, float decay, float step,
                     float skip, float scale, const DeltaRows& row, const float* fetched) {
    const float decayed = scale * decay;
    const bool scales = !(decayed >= kLeastScale);
    const F32x16 wider = F32x16::set1(scales ? step : step / decayed);
    F32x16 u[kVectors], result[kVectors];
    for (int j = 0; j < kVectors; ++j) u[j] = strip.load(row.v, j) * wider;
    const auto update = [&]<Scaling kScaling>() {
      update_strip<kVectors, kWhole, kScaling, false>(strip, from, to, &decayed, row.k, u, row.q, result, fetched,
                                                      nullptr);
    };
    scales ? update.template operator()<Scaling::kWhole>() : update.template operator()<Scaling::kNone>();
    const float after = scales ? 1.0f : decayed;
    for (int j = 0; j < kVectors && row.out != nullptr; ++j)
      strip.store(F32x16::fma(F32x16::set1(skip), strip.load(row.v, j), result[j] * F32x16::set1(after)), row.out, j);
    return after;
  }

  // Tokens: the strip's columns go from `from` to `to`. Returns the scale after them.
  template <int kVectors, bool kWhole>
  static float rows(const DeltaArgs& a, const DeltaItem& item, const Strip<kVectors, kWhole>& strip, DeltaRows row,
                    int32_t count, const float* from, float* to, float scale, Factors& factors) {
    for (int32_t t = 0; t < count; ++t, row.advance()) {
      const int index = t % kDeltaTokens;
      const int32_t left = count - t;
      if (index == 0) space_factors(a, item.head, row, left < kDeltaTokens ? left : kDeltaTokens, factors);
      const float* fetched = left == 1 && item.ahead != nullptr ? item.ahead : to;
      scale = token(strip, from, to, factors.decay[index], factors.step[index], a.skip[item.head], scale, row, fetched);
      from = to;
    }
    return scale;
  }
};

inline void state_space(const DeltaArgs& a, DeltaItem item, void* scratch) { strips<StateSpace>(a, item, scratch); }

}  // namespace
}  // namespace numaserve
