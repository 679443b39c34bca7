// Conversion of a KV block's scores to probabilities. See attention.inl.
#pragma once

#include "kernels/include/kernel_table.h"
#include "kernels/ops/kv_ahead.inl"
#include "kernels/simd/f32x16.h"
#include "kernels/simd/functions.h"
#include "kernels/simd/kv_codes.h"
#include "kernels/simd/of_rows.h"

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

// Adjusts a row's scores of the tokens [begin, begin + count), where some are hidden or capped, for softmax_row.
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

// The largest score of each lane of a row.
inline F32x16 row_peak(const float* s, int32_t count) {
  F32x16 peak[2] = {F32x16::load(s), F32x16::load(s + 16)};
  for (int32_t j = 32; j < count; j += 32)
    for (int i = 0; i < 2; ++i) peak[i] = F32x16::max(peak[i], F32x16::load(s + j + 16 * i));
  return F32x16::max(peak[0], peak[1]);
}

// Turns a row of `count` scores, a multiple of 32, into probabilities in bf16, times the scales of V, and returns the
// lanes of their sum. The maximum `m` is in powers of two: the factor `unit` that makes scores exponents of two is
// applied where the maximum is subtracted, at no cost.
template <class Codes, bool kAhead>
inline F32x16 probabilities(const BlockScales& scales, float unit, float m, int32_t count, KvAhead& ahead,
                            const float* s, bf16* p) {
  const F32x16 factor = F32x16::set1(unit), minus_m = F32x16::set1(-m);
  F32x16 sum[2] = {F32x16::zero(), F32x16::zero()};
  for (int32_t j = 0; j < count; j += 32) {
    if constexpr (kAhead) advance(ahead, 2 * ahead.vector_lines);
    F32x16 x[2];
    for (int i = 0; i < 2; ++i) {
      const int32_t at = j + 16 * i;
      x[i] = exp2_probability<!Codes::kScaled>(F32x16::fma(F32x16::load(s + at), factor, minus_m));
      // The factors that V is multiplied by are summed, so that the weights add up to one.
      if constexpr (Codes::kScaled) {
        x[i] = (x[i] * F32x16::load(scales.v + at)).nearest_bf16();
        sum[i] = F32x16::fma(x[i], F32x16::load(scales.v_inverse + at), sum[i]);
      } else {
        sum[i] = sum[i] + x[i].truncated_bf16();
      }
    }
    F32x16::store_truncated(x[0], x[1], p + j);
  }
  return sum[0] + sum[1];
}

// Converts scores of tokens from `first` on, as products give them, to probabilities, for up to 16 rows of an item from
// `row` on. The limit is 16 because maxima and sums are taken over the lanes of all these rows at once. m and l have
// space for 16. A row that sees none of the tokens gets l = 0.
template <class Codes, bool kAhead>
inline void softmax_rows(const AttentionArgs& a, const BlockScales& scales, const AttentionItem& item, int32_t row,
                         int32_t first, int32_t count, KvAhead& ahead, float* s, bf16* p, float* m, float* l) {
  constexpr float kLog2E = 1.44269504f;
  const float unit = a.softcap > 0.0f ? kLog2E : a.scale * kLog2E;
  const int32_t rows = item.num_rows - row < 16 ? item.num_rows - row : 16;
  F32x16 lanes[16];
  for (int32_t r = rows; r < 16; ++r) lanes[r] = F32x16::zero();
  uint32_t blind = 0;  // rows, by bits
  // The limits of each row take divisions: with AMX, 2 % of a prompt's attention.
  const bool see_all =
      row_limits(a, item, row).high >= first + count && row_limits(a, item, row + rows - 1).low <= first;
  for (int32_t r = 0; r < rows; ++r) {
    const RowLimits limits = see_all ? RowLimits{first, first + count} : row_limits(a, item, row + r);
    float* scores = s + r * kAttentionBlock;
    if (limits.high <= first || limits.low >= first + kAttentionBlock) {
      blind |= 1u << r;
      lanes[r] = F32x16::zero();
      continue;
    }
    if constexpr (Codes::kScaled) scale_scores(scales, count, scores);
    adjust_scores(a, limits, first, count, scores);
    lanes[r] = row_peak(scores, count);
  }
  (max_of_rows(lanes) * F32x16::set1(unit)).store(m);
  for (int32_t r = 0; r < rows; ++r) {
    if constexpr (!kAhead) advance(ahead, ahead.row_lines);
    if constexpr (!kAhead) advance(a, ahead.rows);
    bf16* out = p + r * kAttentionBlock;
    if ((blind >> r & 1) == 0) {
      lanes[r] = probabilities<Codes, kAhead>(scales, unit, m[r], count, ahead, s + r * kAttentionBlock, out);
    } else {
      __builtin_memset(out, 0, static_cast<size_t>(count) * sizeof(bf16));
      lanes[r] = F32x16::zero();
      m[r] = 0.0f;
    }
  }
  sum_of_rows(lanes).store(l);
}

}  // namespace
}  // namespace numaserve
