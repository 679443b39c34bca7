// RMS norms of vectors that ranks divide: sums of squares of a rank's part, and the scaling by those of all ranks.
#pragma once

#include "kernels/include/kernel_table.h"
#include "kernels/include/shares.h"
#include "kernels/ops/norm.inl"
#include "kernels/simd/f32x16.h"

namespace numaserve {
namespace {

inline void divided_norm_sums(const DividedNormArgs& n, int thread, int threads) {
  const Range rows = share_of(n, thread, threads);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float* x = n.x + r * n.ldx;
    for (int64_t v = 0; v < n.num_vectors; ++v) {
      const DividedVector& vector = n.vectors[v];
      n.own_sums[r * n.ld_sums + v] = sum_of_squares(x + vector.cols - vector.counted, vector.counted);
      x += vector.cols;
    }
  }
}

inline void scale_columns(float* x, const float* weight, int64_t cols, F32x16 scale) {
  for (int64_t i = 0; i < cols; i += 16) {
    const int valid = static_cast<int>(cols - i < 16 ? cols - i : 16);
    (F32x16::load_head(x + i, valid) * scale * F32x16::load_head(weight + i, valid)).store_head(x + i, valid);
  }
}

inline void divided_norm_scale(const DividedNormArgs& n, int thread, int threads) {
  const Range rows = share_of(n, thread, threads);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    float* x = n.x + r * n.ldx;
    for (int64_t v = 0; v < n.num_vectors; ++v) {
      const DividedVector& vector = n.vectors[v];
      const int64_t at = r * n.ld_sums + v;
      float sum = n.sums[0][at];
      for (int p = 1; p < n.num_parts; ++p) sum += n.sums[p][at];
      const float scale = 1.0f / __builtin_sqrtf(sum / static_cast<float>(vector.all_cols) + n.eps);
      scale_columns(x, vector.weight, vector.cols, F32x16::set1(scale));
      x += vector.cols;
    }
  }
}

}  // namespace
}  // namespace numaserve
