// The gates of recurrent layers and of attention: norms of heads times silu(gate) or sigmoid(gate), and x times
// sigmoid(gate).
#pragma once

#include "kernels/include/kernel_table.h"
#include "kernels/include/shares.h"
#include "kernels/ops/norm.inl"
#include "kernels/simd/f32x16.h"
#include "kernels/simd/functions.h"
#include "kernels/simd/unrolled.h"

namespace numaserve {
namespace {

// Returns the place of a column of a row of results.
inline bf16* gated_place(const GatedNormArgs& n, int64_t row, int64_t column) {
  return n.out + row_index<bf16>(n.tiled, row, column, n.ldo);
}

template <bool kSilu>
inline void gated_norm_head(const GatedNormArgs& n, int64_t row, int64_t head) {
  const float *x = n.x + row * n.ldx + head * n.dim, *gate = n.gate + row * n.ldg + head * n.dim;
  const F32x16 scale = F32x16::set1(rms_scale(x, n.dim, n.eps));
  const auto factor = [](F32x16 z) NUMASERVE_INLINE { return kSilu ? silu(z) : sigmoid(z); };
  int64_t i = 0;
  for (; i + 16 <= n.dim; i += 16)
    (F32x16::load(x + i) * scale * F32x16::load(n.weight + i) * factor(F32x16::load(gate + i)))
        .store(gated_place(n, row, head * n.dim + i));
  if (i == n.dim) return;
  const int rest = static_cast<int>(n.dim - i);
  alignas(64) bf16 last[16];  // the next head's columns may belong to another thread
  (F32x16::load_head(x + i, rest) * scale * F32x16::load_head(n.weight + i, rest) *
   factor(F32x16::load_head(gate + i, rest)))
      .store(last);
  __builtin_memcpy(gated_place(n, row, head * n.dim + i), last, static_cast<size_t>(rest) * sizeof(bf16));
}

inline void gated_norm(const GatedNormArgs& n, int thread, int threads) {
  const Range items = share_of(n, thread, threads);
  for (int64_t i = items.begin; i < items.end; ++i)
    n.silu ? gated_norm_head<true>(n, i / n.heads, i % n.heads) : gated_norm_head<false>(n, i / n.heads, i % n.heads);
  const Range rows = split(n.rows, threads, thread);
  const int64_t cols = n.heads * n.dim;
  for (int64_t r = rows.begin; r < rows.end; ++r)
    for (int64_t i = cols; i < n.ldo; i += 16)
      __builtin_memset(gated_place(n, r, i), 0, static_cast<size_t>(n.ldo - i < 16 ? n.ldo - i : 16) * sizeof(bf16));
}

inline void sigmoid_gate(const SigmoidGateArgs& a, int thread, int threads) {
  const RowShare share = share_of(a, thread, threads);
  for (int64_t r = share.rows.begin; r < share.rows.end; ++r) {
    const float* const gate = a.gate + r * a.ldg;
    for (int64_t i = share.columns.begin; i < share.columns.end; i += 16) {
      const int valid = static_cast<int>(a.cols - i < 16 ? a.cols - i : 16);
      bf16* const x = a.x + row_index<bf16>(a.tiled, r, i, a.ldx);
      (F32x16::load(x) * sigmoid(F32x16::load_head(gate + i, valid))).store(x);  // x is zero after the columns
    }
  }
}

}  // namespace
}  // namespace numaserve
