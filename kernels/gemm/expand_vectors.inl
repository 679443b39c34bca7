// The part of a product that low-rank adapters add, without tile registers: row by row, when sums are finished.
#pragma once

#include "kernels/gemm/expand.inl"
#include "kernels/include/dense_args.h"
#include "kernels/simd/f32x16.h"
#include "kernels/simd/prefetch.h"

namespace numaserve {
namespace {

// Nothing is made beforehand.
inline void expand_late(const GemmArgs&, int64_t, int64_t, int64_t, float*) {}

// Returns `sums`, the 16 columns of a panel of row `row`, with what the row's adapter adds to them. The order of the
// additions depends on nothing but the adapter: a row has the same bits in any company.
inline F32x16 expanded(const GemmArgs& g, int64_t row, int64_t panel, const float*, int64_t, F32x16 sums) {
  const ExpandArgs& e = g.expand;
  const int64_t place = e.adapters[row] - 1;
  if (place < 0) return sums;
  for (int64_t block = e.table.first_blocks[panel]; block < e.table.first_blocks[panel + 1]; ++block) {
    const int64_t part = e.table.block_parts[block];
    const int32_t rank = e.table.ranks[place * e.table.parts + part];
    const float* t = e.shrunk + row * e.ld + part * shrunk_columns(e.table.rank);
    const bf16* b = e.table.b + (place * e.table.blocks + block) * e.table.rank * kTileN;
    if (e.fetches_ahead) {
      const bf16* next = b + kBlocksAhead * e.table.rank * kTileN;
      for (int64_t i = 0; i < rank * kTileN; i += kLineBytes / 2) prefetch_line(next + i);
    }
    for (int32_t i = 0; i < rank; ++i) sums = F32x16::fma(F32x16::set1(t[i]), F32x16::load(b + i * kTileN), sums);
  }
  return sums;
}

}  // namespace
}  // namespace numaserve
