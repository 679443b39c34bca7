// Products with codes of the KV cache that are widened in registers: the avx512 set uses these with few rows, for which
// tiles in the cache would be written for a single read. Each element is the same chain of products as in `tile_gemm`.
// More than four rows take one panel at a time: with two, their sums would leave no registers for widening.
#pragma once

#include <immintrin.h>

#include "kernels/gemm/tiles/sums_avx512.h"
#include "kernels/gemm/tiles/tile.h"
#include "kernels/include/kv_layer.h"

namespace numaserve {
namespace {

template <class Codes, int kRows, int kPanels, class TileAt>
inline void kv_rows_in_registers(const bf16* a, int64_t lda, TileAt b, int64_t panel_bytes, int64_t k_tiles, float* c,
                                 int64_t ldc) {
  Fp32Sums sums[kRows][kPanels];
  for (int64_t kt = 0; kt < k_tiles; ++kt) {
    const std::byte* tile = b(kt);
    for (int64_t line = 0; line < kv_tile_bytes(Codes::kDtype) / kLineBytes; ++line) {
      for (int panel = 0; panel < kPanels; ++panel) {
        __m512i columns[2];
        Codes::widen(_mm512_loadu_si512(tile + panel * panel_bytes + line * kLineBytes), columns[0], columns[1]);
        for (int i = 0; i < 2; ++i)
          for (int r = 0; r < kRows; ++r) {
            int bits;
            __builtin_memcpy(&bits, a + r * lda + kt * kTileK + (2 * line + i) * kLineDepth<bf16>, sizeof(bits));
            sums[r][panel].add(bits, columns[i]);
          }
      }
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int panel = 0; panel < kPanels; ++panel) sums[r][panel].store(c + r * ldc + panel * kTileN);
}

// c[rows, panels * 16] = a[rows, k] · B, where b(kt) is the tile of codes of the first panel for k tile kt. The tile of
// each further panel lies `panel_bytes` after the one before; `panels` is even. Returns false, with nothing done, where
// this method does not apply.
template <class Codes, int kRows = kKvRowsInRegisters, class TileAt>
inline bool kv_tiles_in_registers(const bf16* a, int64_t lda, TileAt b, int64_t panel_bytes, int panels,
                                  int64_t k_tiles, float* c, int64_t ldc, int rows) {
  if constexpr (kRows == 0) {
    return false;
  } else {
    if (rows != kRows)
      return kv_tiles_in_registers<Codes, kRows - 1>(a, lda, b, panel_bytes, panels, k_tiles, c, ldc, rows);
    constexpr int kPanels = kRows > 4 ? 1 : 2;
    for (int panel = 0; panel < panels; panel += kPanels) {
      const auto tile = [&](int64_t kt) { return b(kt) + panel * panel_bytes; };
      kv_rows_in_registers<Codes, kRows, kPanels>(a, lda, tile, panel_bytes, k_tiles, c + panel * kTileN, ldc);
    }
    return true;
  }
}

}  // namespace
}  // namespace numaserve
