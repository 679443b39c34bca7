// The vector of a sequence: one of its rows, or all of them at once.
#pragma once

#include "kernels/include/kernel_table.h"
#include "kernels/include/shares.h"
#include "kernels/ops/norm.inl"
#include "kernels/simd/f32x16.h"

namespace numaserve {
namespace {

// Calls `take(i, value)` for the columns of a row, or of its norm.
inline void pooled_columns(const PoolArgs& p, int64_t row, Range columns, auto&& take) {
  const float* x = p.x + row * p.ldx;
  const F32x16 scale = F32x16::set1(p.weight == nullptr ? 1.0f : rms_scale(x, p.cols, p.eps));
  for (int64_t i = columns.begin; i < columns.end; i += 16) {
    const int valid = static_cast<int>(p.cols - i < 0 ? 0 : p.cols - i);
    const F32x16 value = F32x16::load_head(x + i, valid) * scale;
    take(i, p.weight == nullptr ? value : value * F32x16::load_head(p.weight + i, valid));
  }
}

// Rows are added in order, so that a sequence has the same bits whatever else is in the step.
inline void pool_sequence(const PoolArgs& p, PooledRows rows, Range columns, float* out) {
  const int32_t last = rows.first + rows.count - 1;
  const bool takes_one = p.pooling == Pooling::kLast || p.pooling == Pooling::kFirst;
  pooled_columns(p, p.pooling == Pooling::kLast ? last : rows.first, columns,
                 [&](int64_t i, F32x16 value) { value.store(out + i); });
  if (takes_one) return;
  for (int32_t row = rows.first + 1; row <= last; ++row)
    pooled_columns(p, row, columns, [&](int64_t i, F32x16 value) {
      const F32x16 before = F32x16::load(out + i);
      (p.pooling == Pooling::kMean ? before + value : F32x16::max(before, value)).store(out + i);
    });
  if (p.pooling == Pooling::kMax) return;
  const F32x16 part = F32x16::set1(1.0f / static_cast<float>(rows.count));
  for (int64_t i = columns.begin; i < columns.end; i += 16) (F32x16::load(out + i) * part).store(out + i);
}

inline void pool(const PoolArgs& p, int thread, int threads) {
  const RowShare share = share_of(p, thread, threads);
  for (int64_t r = share.rows.begin; r < share.rows.end; ++r)
    pool_sequence(p, p.sequences[r], share.columns, p.out + r * p.ldo);
}

}  // namespace
}  // namespace numaserve
