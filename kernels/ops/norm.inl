// RMS norm (Zhang and Sennrich, 2019), and the reduction over ranks with the residual add that comes before it.
#pragma once

#include "kernels/include/kernel_table.h"
#include "kernels/include/shares.h"
#include "kernels/simd/f32x16.h"

namespace numaserve {
namespace {

inline float sum_of_squares(const float* x, int64_t count) {
  F32x16 sum = F32x16::zero();
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const F32x16 v = F32x16::load(x + i);
    sum = F32x16::fma(v, v, sum);
  }
  if (i < count) {
    const F32x16 v = F32x16::load_head(x + i, static_cast<int>(count - i));
    sum = F32x16::fma(v, v, sum);
  }
  return sum.sum();
}

inline float rms_scale(const float* x, int64_t count, float eps) {
  return 1.0f / __builtin_sqrtf(sum_of_squares(x, count) / static_cast<float>(count) + eps);
}

// Normalises columns of a row, or only rounds them; `at` gives the place of a column's result.
template <class At>
inline void rms_norm_row_at(const NormArgs& n, int64_t row, Range columns, At&& at) {
  const float* x = n.x + row * n.ldx;
  if (n.weight == nullptr) {
    for (int64_t i = columns.begin; i < columns.end; i += 16)
      F32x16::load_head(x + i, static_cast<int>(n.cols - i < 0 ? 0 : n.cols - i)).store(at(i));
    return;
  }
  const F32x16 scale = F32x16::set1(rms_scale(x, n.cols, n.eps));
  for (int64_t i = columns.begin; i < columns.end; i += 16) {
    const int valid = static_cast<int>(n.cols - i < 0 ? 0 : n.cols - i);
    (F32x16::load_head(x + i, valid) * scale * F32x16::load_head(n.weight + i, valid)).store(at(i));
  }
}

// The same, where `out` is the row.
inline void rms_norm_row(const NormArgs& n, int64_t row, Range columns, bf16* out) {
  rms_norm_row_at(n, row, columns, [out](int64_t column) { return out + column; });
}

inline void rms_norm(const NormArgs& n, int thread, int threads) {
  const RowShare share = share_of(n, thread, threads);
  for (int64_t r = share.rows.begin; r < share.rows.end; ++r) {
    if (n.tiled)
      rms_norm_row_at(n, r, share.columns, [&](int64_t column) { return n.out + tiled_index<bf16>(r, column, n.ldo); });
    else
      rms_norm_row(n, r, share.columns, n.out + r * n.ldo);
  }
}

inline void reduce_add(const ReduceArgs& a, Range values) {
  int64_t column = values.begin % a.ld;
  for (int64_t at = values.begin; at < values.end; at += 16) {
    F32x16 sum = F32x16::load(a.parts[0] + at);
    for (int p = 1; p < a.num_parts; ++p) sum = sum + F32x16::load(a.parts[p] + at);
    if (a.bias != nullptr) sum = sum + F32x16::load_head(a.bias + column, static_cast<int>(a.cols - column));
    if (a.post_norm != nullptr)
      sum.store(a.sum + at);
    else if (a.assign)
      sum.store(a.residual + at);
    else
      (F32x16::load(a.residual + at) + sum).store(a.residual + at);
    column = column + 16 < a.ld ? column + 16 : 0;
  }
}

inline void post_norm_add(const ReduceArgs& a, int thread, int threads) {
  const RowShare share = share_of(a, thread, threads);
  for (int64_t r = share.rows.begin; r < share.rows.end; ++r) {
    const F32x16 scale = F32x16::set1(rms_scale(a.sum + r * a.ld, a.cols, a.eps));
    for (int64_t i = share.columns.begin; i < share.columns.end; i += 16) {
      const int64_t at = r * a.ld + i;
      const F32x16 weight = F32x16::load_head(a.post_norm + i, static_cast<int>(a.cols - i));
      const F32x16 before = a.assign ? F32x16::zero() : F32x16::load(a.residual + at);
      ((before + F32x16::load(a.sum + at) * scale * weight) * F32x16::set1(a.scale)).store(a.residual + at);
    }
  }
}

}  // namespace
}  // namespace numaserve
