// The products of rows with the A matrices of their adapters, without tile registers. Each sum is a chain of its own
// along k.
#pragma once

#include "kernels/include/kernel_table.h"
#include "kernels/include/shares.h"
#include "kernels/simd/f32x16.h"
#include "kernels/simd/prefetch.h"
#include "kernels/simd/unrolled.h"

namespace numaserve {
namespace {

inline constexpr ShrinkTile kShrinkTile = kShrinkVectors;

// Values of A that are fetched ahead where a single row reads them, once in a step: 512 bytes.
inline constexpr int64_t kShrinkAhead = 256;

template <int kRows>
NUMASERVE_FLAT inline void shrink_rows(const bf16* x, int64_t ldx, const bf16* a, int64_t depth, int count, float scale,
                                       float* out, int64_t ld) {
  F32x16 sums[kRows][kShrinkVectors.sums];
  unrolled<kRows>(
      [&]<int kRow>() { unrolled<kShrinkVectors.sums>([&]<int kColumn>() { sums[kRow][kColumn] = F32x16::zero(); }); });
  // Rows of A beyond the last one are the last one again.
  const bf16* lines[kShrinkVectors.sums];
  for (int i = 0; i < kShrinkVectors.sums; ++i) lines[i] = a + (i < count ? i : count - 1) * depth;
  for (int64_t k = 0; k < depth; k += kTileN) {
    F32x16 values[kRows];
    unrolled<kRows>([&]<int kRow>() { values[kRow] = F32x16::load(x + kRow * ldx + k); });
    unrolled<kShrinkVectors.sums>([&]<int kColumn>() {
      if constexpr (kRows == 1) prefetch_first(lines[kColumn] + k + kShrinkAhead);
      const F32x16 factor = F32x16::load(lines[kColumn] + k);
      unrolled<kRows>(
          [&]<int kRow>() { sums[kRow][kColumn] = F32x16::fma(values[kRow], factor, sums[kRow][kColumn]); });
    });
  }
  unrolled<kRows>([&]<int kRow>() {
    unrolled<kShrinkVectors.sums>([&]<int kColumn>() {
      if (kColumn < count) out[kRow * ld + kColumn] = sums[kRow][kColumn].sum() * scale;
    });
  });
}

inline void shrink_tile(const ShrinkArgs& s, int64_t row, int64_t rows, int64_t part, int64_t first) {
  const AdapterTable& t = s.table;
  const int64_t at = (s.adapters[row] - 1) * t.parts + part, left = t.ranks[at] - first;
  const int count = static_cast<int>(left < kShrinkVectors.sums ? left : kShrinkVectors.sums);
  const bf16* x = s.x + row * s.ldx;
  const bf16* a = t.a + (at * t.rank + first) * t.depth;
  float* out = s.shrunk + row * s.ld + part * shrunk_columns(t.rank) + first;
  switch (rows) {
    case 1:
      return shrink_rows<1>(x, s.ldx, a, t.depth, count, t.scales[at], out, s.ld);
    case 2:
      return shrink_rows<2>(x, s.ldx, a, t.depth, count, t.scales[at], out, s.ld);
    case 3:
      return shrink_rows<3>(x, s.ldx, a, t.depth, count, t.scales[at], out, s.ld);
    default:
      return shrink_rows<4>(x, s.ldx, a, t.depth, count, t.scales[at], out, s.ld);
  }
}

}  // namespace
}  // namespace numaserve
