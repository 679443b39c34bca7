// Layer norm (Ba et al., 2016).
#pragma once

#include "kernels/include/kernel_table.h"
#include "kernels/include/shares.h"
#include "kernels/simd/f32x16.h"
#include "kernels/simd/unrolled.h"

namespace numaserve {
namespace {

inline F32x16 load_columns(const float* x, int64_t first, int64_t cols) {
  return F32x16::load_head(x + first, static_cast<int>(cols - first < 0 ? 0 : cols - first));
}

struct Moments {
  float mean, scale;
};

// The variance is that of the differences from the mean: a difference of two large sums would lose digits.
inline Moments moments(const float* x, int64_t cols, float eps) {
  F32x16 sum = F32x16::zero();
  for (int64_t i = 0; i < cols; i += 16) sum = sum + load_columns(x, i, cols);
  const float mean = sum.sum() / static_cast<float>(cols);
  F32x16 squares = F32x16::zero();
  const auto add = [&](F32x16 v) NUMASERVE_INLINE { squares = F32x16::fma(v, v, squares); };
  int64_t i = 0;
  for (; i + 16 <= cols; i += 16) add(F32x16::load(x + i) - F32x16::set1(mean));
  if (i < cols) {
    const int rest = static_cast<int>(cols - i);
    float means[16];
    for (float& each : means) each = mean;
    add(F32x16::load_head(x + i, rest) - F32x16::load_head(means, rest));
  }
  return {mean, 1.0f / __builtin_sqrtf(squares.sum() / static_cast<float>(cols) + eps)};
}

inline void layer_norm(const LayerNormArgs& n, int thread, int threads) {
  const RowShare share = share_of(n, thread, threads);
  for (int64_t r = share.rows.begin; r < share.rows.end; ++r) {
    const float* x = n.x + r * n.ldx;
    const Moments of = moments(x, n.cols, n.eps);
    for (int64_t i = share.columns.begin; i < share.columns.end; i += 16) {
      const F32x16 scale = load_columns(n.weight, i, n.cols) * F32x16::set1(of.scale);
      const F32x16 bias = n.bias == nullptr ? F32x16::zero() : load_columns(n.bias, i, n.cols);
      const F32x16 value = F32x16::fma(load_columns(x, i, n.cols) - F32x16::set1(of.mean), scale, bias);
      if (n.out_bf16 != nullptr)
        value.store(n.out_bf16 + r * n.ldo + i);
      else
        value.store(n.out_f32 + r * n.ldo + i);
    }
  }
}

}  // namespace
}  // namespace numaserve
