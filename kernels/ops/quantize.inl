// Activations to int8, a scale for each row ("dynamic per-token", as in LLM.int8() and compressed-tensors W8A8).
#pragma once

#include "kernels/gemm/tiles/tile.h"
#include "kernels/include/kernel_table.h"
#include "kernels/include/shares.h"
#include "kernels/ops/norm.inl"
#include "kernels/simd/f32x16.h"

namespace numaserve {
namespace {

inline constexpr float kInt8Max = 127.0f;

// Returns the factor that values are multiplied by; 0 where all are below 2^-121, whose inverses are infinite.
inline float steps_of(float peak) {
  const float steps = kInt8Max / peak;
  return is_finite(steps) ? steps : 0.0f;
}

// Returns NaN if there is one: the scale is then NaN, and so is every product with the row. Codes have no NaN and would
// become numbers.
template <class T>
inline float largest_magnitude(const T* x, int64_t count) {
  F32x16 peak = F32x16::zero();
  for (int64_t i = 0; i < count; i += 16) peak = F32x16::larger_magnitude(peak, F32x16::load(x + i));
  return peak.max_magnitude();
}

// Returns values [first, first + 16) of a row, zero beyond its padding.
inline F32x16 padded_values(const QuantizeArgs& q, const bf16* x, int64_t first) {
  return first < round_up(q.cols, kPad) ? F32x16::load(x + first) : F32x16::zero();
}

// Quantizes a row's groups [begin, end).
inline void quantize_groups(const QuantizeArgs& q, const bf16* x, Range groups, int8_t* out) {
  for (int64_t group = groups.begin; group < groups.end; ++group) {
    const int64_t begin = group * q.group, end = begin + q.group;
    F32x16 peaks = F32x16::zero();
    for (int64_t i = begin; i < end; i += 16) peaks = F32x16::larger_magnitude(peaks, padded_values(q, x, i));
    const float peak = peaks.max_magnitude();
    const F32x16 factor = F32x16::set1(steps_of(peak));
    F32x16 sums = F32x16::zero();  // of integers: exact
    for (int64_t i = begin; i < end; i += 16) {
      const F32x16 v = (padded_values(q, x, i) * factor).round();
      v.store_int8_exchanged(out + i);
      sums = sums + v;
    }
    const int32_t sum = is_finite(peak) ? static_cast<int32_t>(sums.whole_sum()) : 0;
    const float step = peak / kInt8Max, total = static_cast<float>(sum);
    const GroupScale scale{step, -8 * sum, total, total * step};
    __builtin_memcpy(out + q.depth + group * static_cast<int64_t>(sizeof(scale)), &scale, sizeof(scale));
  }
}

// Quantizes columns of a row without groups; `at` gives the place of a column's code, and the last column's thread
// writes the row's scale to `scale_at`.
template <class At>
inline void quantize_row(const QuantizeArgs& q, const bf16* x, Range columns, At&& at, int8_t* scale_at) {
  const float peak = largest_magnitude(x, round_up(q.cols, 16));
  const F32x16 factor = F32x16::set1(steps_of(peak));
  for (int64_t i = columns.begin; i < columns.end; i += 16)
    (padded_values(q, x, i) * factor).store_int8(at(i), kActivationOffset);
  const float scale = peak / kInt8Max;
  if (columns.end == q.depth) __builtin_memcpy(scale_at, &scale, sizeof(scale));
}

// Quantizes columns of row `row`, whose values are `x`.
inline void quantize_columns(const QuantizeArgs& q, int64_t row, const bf16* x, Range columns) {
  if (q.tiled)
    return quantize_row(
        q, x, columns, [&](int64_t column) { return q.out + tiled_index<int8_t>(row, column, q.ldo); },
        q.out + tiled_scale_index(row, q.depth, q.ldo));
  int8_t* out = q.out + row / q.heads * q.ldo + row % q.heads * q.out_stride;
  if (q.group > 0) return quantize_groups(q, x, {columns.begin / q.group, columns.end / q.group}, out);
  quantize_row(q, x, columns, [out](int64_t column) { return out + column; }, out + q.depth);
}

inline void quantize(const QuantizeArgs& q, int thread, int threads) {
  const RowShare share = share_of(q, thread, threads);
  for (int64_t r = share.rows.begin; r < share.rows.end; ++r)
    quantize_columns(q, r, q.x + r / q.heads * q.ldx + r % q.heads * q.x_stride, share.columns);
}

// Computes a norm and its result in int8 in one pass; q.x is the norm's output. A single row is normalised by every
// thread, to `scratch`: that is cheaper than a barrier, too.
inline void rms_norm_quantize(const NormArgs& n, const QuantizeArgs& q, void* scratch, int thread, int threads) {
  const RowShare share = share_of(n, q, thread, threads);
  const bool whole = n.rows > 1 || threads == 1;
  const Range all{0, n.ldo};
  for (int64_t r = share.rows.begin; r < share.rows.end; ++r) {
    bf16* out = n.out + r * n.ldo;
    bf16* row = whole ? out : static_cast<bf16*>(scratch);
    rms_norm_row(n, r, all, row);
    quantize_columns(q, r, row, share.columns);
    if (whole) continue;
    const Range mine = split(n.ldo, threads, thread, 16);
    if (mine.begin < mine.end)
      __builtin_memcpy(out + mine.begin, row + mine.begin, static_cast<size_t>(mine.end - mine.begin) * sizeof(bf16));
  }
}

}  // namespace
}  // namespace numaserve
