// Scores of a block of KV to probabilities. See attention.inl.
#pragma once

#include "kernels/include/kernel_table.h"
#include "kernels/ops/kv_ahead.inl"
#include "kernels/simd/f32x16.h"
#include "kernels/simd/functions.h"
#include "kernels/simd/kv_codes.h"

namespace numaserve {
namespace {

// The scales of a block's tokens, where the cache has codes.
struct BlockScales {
  alignas(64) float k[kAttentionBlock], v[kAttentionBlock], v_inverse[kAttentionBlock];
};

inline F32x16 lane_indices() {
  alignas(64) static constexpr float kLanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return F32x16::load(kLanes);
}

// A row's scores of the tokens [begin, begin + count), where some are hidden or capped, as softmax_row wants them.
inline void adjust_scores(const AttentionArgs& a, RowLimits limits, int32_t begin, int32_t count, float* s) {
  const float low = static_cast<float>(limits.low - begin), high = static_cast<float>(limits.high - begin);
  const bool hides = low > 0.0f || high < static_cast<float>(count);
  if (!hides && a.softcap <= 0.0f) return;
  for (int32_t j = 0; j < count; j += 16) {
    F32x16 x = F32x16::load(s + j);
    if (a.softcap > 0.0f) x = tanh(x * F32x16::set1(a.scale) / F32x16::set1(a.softcap)) * F32x16::set1(a.softcap);
    const F32x16 index = lane_indices() + F32x16::set1(static_cast<float>(j));
    x.where_in(index, low, high, F32x16::set1(-__builtin_inff())).store(s + j);
  }
}

// Multiplies a row of scores with the scales of K.
inline void scale_scores(const BlockScales& scales, int32_t count, float* s) {
  for (int32_t j = 0; j < count; j += 16) (F32x16::load(s + j) * F32x16::load(scales.k + j)).store(s + j);
}

// Turns a row of `count` scores, a multiple of 32, into probabilities, in bf16, times the scales of V. Their maximum
// `m` counts in powers of two: the factor that makes scores exponents of two is multiplied in where the maximum is
// subtracted, and costs nothing.
template <class Codes, bool kAhead>
inline void softmax_row(const AttentionArgs& a, const BlockScales& scales, int32_t count, KvAhead& ahead,
                        const float* s, bf16* p, float& m, float& l) {
  constexpr float kLog2E = 1.44269504f;
  const float unit = a.softcap > 0.0f ? kLog2E : a.scale * kLog2E;
  F32x16 peak = F32x16::load(s);
  for (int32_t j = 16; j < count; j += 16) peak = F32x16::max(peak, F32x16::load(s + j));
  m = peak.max_lane() * unit;
  const F32x16 factor = F32x16::set1(unit), minus_m = F32x16::set1(-m);
  F32x16 sum = F32x16::zero();
  for (int32_t j = 0; j < count; j += 16) {
    if constexpr (kAhead) advance(ahead, ahead.vector_lines);
    F32x16 x = exp2_probability(F32x16::fma(F32x16::load(s + j), factor, minus_m));
    if constexpr (Codes::kScaled) x = x * F32x16::load(scales.v + j);
    x = x.nearest_bf16();
    x.store_exact(p + j);
    // The numbers that V is multiplied with are summed, so that the weights add up to one.
    sum = Codes::kScaled ? F32x16::fma(x, F32x16::load(scales.v_inverse + j), sum) : sum + x;
  }
  l = sum.sum();
}

// The same of a row's scores as they come from the product, of tokens from `first` on. A row that sees none of them
// gets l = 0.
template <class Codes, bool kAhead>
inline void softmax_of_row(const AttentionArgs& a, const BlockScales& scales, RowLimits limits, int32_t first,
                           int32_t count, KvAhead& ahead, float* s, bf16* p, float& m, float& l) {
  if (limits.high <= first || limits.low >= first + kAttentionBlock) {
    __builtin_memset(p, 0, static_cast<size_t>(count) * sizeof(bf16));
    l = 0.0f;
    m = 0.0f;
    return;
  }
  if constexpr (Codes::kScaled) scale_scores(scales, count, s);
  adjust_scores(a, limits, first, count, s);
  softmax_row<Codes, kAhead>(a, scales, count, ahead, s, p, m, l);
}

}  // namespace
}  // namespace numaserve
