// Results of blocks: merged in order, stored as partial results, or written as the result of a row. See attention.inl.
#pragma once

#include "kernels/include/kernel_table.h"
#include "kernels/ops/query_rows.inl"
#include "kernels/simd/f32x16.h"
#include "kernels/simd/functions.h"

namespace numaserve {
namespace {

// Merges a block's outputs (o, m, l) of up to 16 rows into the outputs of earlier blocks (merged...). The rows of `o`
// are `stride` apart, the rows of `merged` `merged_stride`; m, l and merged_... have space for 16.
inline void merge_rows(const float* o, int64_t stride, const float* m, const float* l, float* merged,
                       int64_t merged_stride, float* merged_m, float* merged_l, int32_t rows, int32_t count) {
  const F32x16 m_before = F32x16::load(merged_m), m_now = F32x16::load(m), peak = F32x16::max(m_now, m_before);
  const F32x16 ln2 = F32x16::set1(0.693147181f);
  alignas(64) float before[16], now[16], sum[16], peaks[16];
  exp((m_before - peak) * ln2).store(before);
  exp((m_now - peak) * ln2).store(now);
  (F32x16::load(merged_l) * F32x16::load(before) + F32x16::load(l) * F32x16::load(now)).store(sum);
  peak.store(peaks);
  for (int32_t r = 0; r < rows; ++r, o += stride, merged += merged_stride) {
    if (l[r] == 0.0f) continue;
    if (merged_l[r] == 0.0f) {
      for (int32_t i = 0; i < count; i += 16) F32x16::load(o + i).store(merged + i);
      merged_m[r] = m[r];
      merged_l[r] = l[r];
      continue;
    }
    const F32x16 factor_before = F32x16::set1(before[r]), factor_now = F32x16::set1(now[r]);
    for (int32_t i = 0; i < count; i += 16)
      F32x16::fma(F32x16::load(o + i), factor_now, F32x16::load(merged + i) * factor_before).store(merged + i);
    merged_m[r] = peaks[r];
    merged_l[r] = sum[r];
  }
}

// The same for all rows of an item, with their values side by side.
inline void merge_block(const float* o, const float* m, const float* l, float* merged, float* merged_m, float* merged_l,
                        int32_t rows, int32_t count) {
  for (int32_t r = 0; r < rows; r += 16)
    merge_rows(o + r * count, count, m + r, l + r, merged + r * count, count, merged_m + r, merged_l + r,
               rows - r < 16 ? rows - r : 16, count);
}

// The same for one row.
inline void merge_row(const float* o, float m, float l, float* merged, float& merged_m, float& merged_l,
                      int32_t count) {
  alignas(64) float of[4][16] = {{m}, {l}, {merged_m}, {merged_l}};
  merge_rows(o, 0, of[0], of[1], merged, 0, of[2], of[3], 1, count);
  merged_m = of[2][0];
  merged_l = of[3][0];
}

// The padded dimensions of a row's result.
inline int32_t padded_values(const AttentionArgs& a) { return a.value_tiles * kTileK; }

// Returns a head's sink as a part of a row's sum of probabilities, whose maximum is `m`. Added to the finished sum, it
// does not depend on how the row's blocks were computed. A sink far above all scores gives a result of nearly zero:
// `exp` does not overflow.
inline float sink_share(float sink, float m) {
  constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f;
  alignas(64) float share[16];
  exp(F32x16::set1((sink * kLog2E - m) * kLn2)).store(share);
  return share[0];
}

// Writes columns of a row of results, each time up to the end of a tile's line.
inline void write_columns(const AttentionArgs& a, int64_t row, int64_t column, const bf16* values, int64_t count) {
  for (int64_t i = 0; i < count;) {
    const int64_t left = kTileK - (column + i) % kTileK, some = count - i < left ? count - i : left;
    bf16* out = result_place(a, row, column + i);
    if (some == kTileK)  // without a call
      __builtin_memcpy(out, values + i, kLineBytes);
    else
      __builtin_memcpy(out, values + i, static_cast<size_t>(some) * sizeof(bf16));
    i += some;
  }
}

// Writes the normalised result of a row, without the padding of its head.
inline void write_row(const AttentionArgs& a, const QueryRow& query, const float* merged, float m, float l) {
  const int32_t dim = a.value_dim, heads = a.heads.q_heads;
  if (a.sinks != nullptr) l += sink_share(a.sinks[query.head], m);
  const F32x16 scale = F32x16::set1(a.value_scale / l);
  alignas(64) bf16 rounded[kMaxHeadDim];
  for (int32_t i = 0; i < padded_values(a); i += 16) (F32x16::load(merged + i) * scale).store(rounded + i);
  write_columns(a, query.row, query.head * dim, rounded, dim);
  if (query.head < heads - 1) return;
  constexpr bf16 kZeros[2 * kTileK] = {};  // for the padding columns that the next GEMM reads
  for (int64_t i = heads * dim; i < a.ldo; i += 2 * kTileK)
    write_columns(a, query.row, i, kZeros, a.ldo - i < 2 * kTileK ? a.ldo - i : 2 * kTileK);
}

inline int64_t partial_stride(const AttentionArgs& a) { return padded_values(a) + kPartialExtra; }

inline void write_partial(const AttentionArgs& a, float* to, int64_t index, const float* o, float m, float l) {
  const int32_t count = padded_values(a);
  float* partial = to + index * partial_stride(a);
  __builtin_memcpy(partial, o, static_cast<size_t>(count) * sizeof(float));
  partial[count] = m;
  partial[count + 1] = l;
}

}  // namespace
}  // namespace numaserve
