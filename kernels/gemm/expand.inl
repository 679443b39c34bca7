// The part of a product that low-rank adapters add (see adapter_args.h).
#pragma once

#include "kernels/include/adapter_args.h"
#include "kernels/simd/f32x16.h"
#include "kernels/simd/prefetch.h"

namespace numaserve {
namespace {

inline constexpr int64_t kBlocksAhead = 2;  // from a panel to the same half of the next pair

// Returns `sums`, the 16 columns of a panel of row `row`, with what the row's adapter adds to them. The order of the
// additions depends on nothing but the adapter: a row has the same bits in any company.
inline F32x16 expanded(const ExpandArgs& e, int64_t row, int64_t panel, F32x16 sums) {
  const int64_t place = e.adapters[row] - 1;
  if (place < 0) return sums;
  for (int64_t block = e.table.first_blocks[panel]; block < e.table.first_blocks[panel + 1]; ++block) {
    const int64_t part = e.table.block_parts[block];
    const int32_t rank = e.table.ranks[place * e.table.parts + part];
    const float* t = e.shrunk + row * e.ld + part * e.table.rank;
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
