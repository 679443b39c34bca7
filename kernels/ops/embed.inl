// Rows of the embedding, gathered from its packed tiles: a tied head and embedding are one copy in memory.
#pragma once

#include "kernels/include/kernel_table.h"
#include "kernels/include/shares.h"
#include "kernels/simd/f32x16.h"

namespace numaserve {
namespace {

// Writes, or adds, columns of a row of a packed matrix of bf16, times `scale`; `columns` begin and end at even numbers.
template <bool kAdds>
inline void unpack_row(const bf16* table, int64_t k_tiles, int64_t row, Range columns, float scale, float* out) {
  for (int64_t k = columns.begin; k < columns.end; k += 2) {
    const bf16* tile = table + tile_index(row / kTileN, k / kTileK, k_tiles) * kTileElements;
    const bf16* pair = tile + k % kTileK * kTileN + row % kTileN * 2;
    for (int i = 0; i < 2; ++i) {
      const uint32_t bits = static_cast<uint32_t>(pair[i]) << 16;
      float value;
      __builtin_memcpy(&value, &bits, sizeof(value));
      float& to = out[k - columns.begin + i];
      to = kAdds ? to + value * scale : value * scale;
    }
  }
}

inline void embed(const EmbedArgs& e, int thread, int threads) {
  const Range rows = share_of(e, thread, threads);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    float* out = e.out + r * e.ld;
    const int64_t row = e.indices[r * e.stride] - e.first_row;
    const float scale = e.scales == nullptr ? e.scale : e.scales[r * e.stride];
    const Range columns{0, e.k_tiles * kTileK};
    const bool is_here = row >= 0 && row < e.num_rows;
    if (is_here && e.accumulate)
      unpack_row<true>(e.table, e.k_tiles, row, columns, scale, out);
    else if (is_here)
      unpack_row<false>(e.table, e.k_tiles, row, columns, scale, out);
    else if (!e.accumulate)
      __builtin_memset(out, 0, static_cast<size_t>(e.ld) * sizeof(float));
  }
}

}  // namespace
}  // namespace numaserve
