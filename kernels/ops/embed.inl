// Rows of the embedding, gathered from its packed tiles: a tied head and embedding are one copy in memory.
#pragma once

#include "kernels/include/kernel_table.h"
#include "kernels/simd/f32x16.h"

namespace numaserve {
namespace {

inline void embed(const EmbedArgs& e, int thread, int threads) {
  const Range rows = split(e.rows, threads, thread);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    float* out = e.out + r * e.ld;
    const int64_t row = e.tokens[r] - e.first_row;
    if (row < 0 || row >= e.num_rows) {
      __builtin_memset(out, 0, static_cast<size_t>(e.ld) * sizeof(float));
      continue;
    }
    for (int64_t k = 0; k < e.k_tiles * kTileK; k += 2) {
      const bf16* tile = e.table + tile_index(row / kTileN, k / kTileK, e.k_tiles) * kTileElements;
      const bf16* pair = tile + k % kTileK * kTileN + row % kTileN * 2;
      for (int i = 0; i < 2; ++i) {
        const uint32_t bits = static_cast<uint32_t>(pair[i]) << 16;
        float value;
        __builtin_memcpy(&value, &bits, sizeof(value));
        out[k + i] = value * e.scale;
      }
    }
  }
}

}  // namespace
}  // namespace numaserve
