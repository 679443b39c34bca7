// The products of rows with the A matrices of their adapters, with tile registers (see adapter_args.h).
//
// The operand of the next product, x · Aᵀ, is two values of bf16 for each sum: the sum rounded, and what is left of it.
// Their products with B have an error of 2^-17 of a sum, and sixteen sums fill the k of a tile.
//
// Rows of A are turned into the lines of a tile when they are read: memory has the same order for all instruction sets.
#pragma once

#include <immintrin.h>

#if !defined(NUMASERVE_TILE_HEADER)  // read by itself
#define NUMASERVE_TILE_HEADER "kernels/gemm/tiles/tile_amx.h"
#endif
#include "kernels/gemm/tiles/tile.h"
#include "kernels/include/kernel_table.h"
#include "kernels/include/shares.h"
#include "kernels/simd/f32x16.h"
#include "kernels/simd/prefetch.h"
#include "kernels/simd/transpose_avx512.h"

namespace numaserve {
namespace {

inline constexpr ShrinkTile kShrinkTile = kShrinkTiles;
inline constexpr int kShrinkRowTiles = kShrinkTiles.rows / kTileRows;
// Tiles of A that are made before their products, in a ring; and values that are fetched ahead where few rows read
// them, once in a step: 512 bytes.
inline constexpr int64_t kShrinkLead = 2, kShrinkRing = 4, kShrinkAhead = 256;

// Sixteen rows of A, of which the first `count` exist.
struct ShrinkFactor {
  const bf16* a;
  int64_t depth;
  int64_t count;
  bool fetches_ahead;

  // Makes the tile of A from k on.
  void tile_at(int64_t k, std::byte* to) const {
    __m512i words[kLines];
    for (int64_t i = 0; i < kLines; ++i) {
      const bf16* line = a + i * depth + k;
      if (fetches_ahead && i < count) prefetch_first(line + kShrinkAhead);
      words[i] = i < count ? _mm512_loadu_si512(line) : _mm512_setzero_si512();
    }
    transpose_16(words);
    for (int64_t i = 0; i < kLines; ++i) _mm512_store_si512(to + i * kLineBytes, words[i]);
  }
};

// The first row of a tile of some rows, the last of which ends with the last row.
inline int64_t shrink_row(int64_t rows, int64_t tile) {
  const int64_t last = rows > kTileRows ? rows - kTileRows : 0;
  return tile * kTileRows < last ? tile * kTileRows : last;
}

// Multiplies kRowTiles tiles of rows: `sums` [kRowTiles][16][16].
template <int kRowTiles>
inline void multiply_shrink_tiles(const bf16* x, int64_t ldx, int64_t rows, const ShrinkFactor& factor, float* sums) {
  alignas(64) std::byte ring[kShrinkRing][kTileBytes];
  const int64_t x_bytes = ldx * static_cast<int64_t>(sizeof(bf16));
  const auto make = [&](int64_t k) {
    if (k < factor.depth) factor.tile_at(k, ring[k / kTileK % kShrinkRing]);
  };
  const auto tile = [&](int64_t index) { return x + shrink_row(rows, index) * ldx; };
  const bf16 *first = tile(0), *second = tile(1), *third = tile(2), *fourth = tile(3);
  NUMASERVE_TILE_ZERO(0);
  NUMASERVE_TILE_ZERO(1);
  NUMASERVE_TILE_ZERO(2);
  NUMASERVE_TILE_ZERO(3);
  for (int64_t i = 0; i < kShrinkLead; ++i) make(i * kTileK);
  for (int64_t k = 0; k < factor.depth; k += kTileK) {
    make(k + kShrinkLead * kTileK);
    __asm__ volatile("" ::: "memory");  // see amx_block
    NUMASERVE_TILE_LOAD(6, ring[k / kTileK % kShrinkRing], 64);
    NUMASERVE_TILE_LOAD(4, first + k, x_bytes);
    NUMASERVE_TILE_DPBF16(0, 4, 6);
    if constexpr (kRowTiles > 1) NUMASERVE_TILE_LOAD(5, second + k, x_bytes);
    if constexpr (kRowTiles > 1) NUMASERVE_TILE_DPBF16(1, 5, 6);
    if constexpr (kRowTiles > 2) NUMASERVE_TILE_LOAD(4, third + k, x_bytes);
    if constexpr (kRowTiles > 2) NUMASERVE_TILE_DPBF16(2, 4, 6);
    if constexpr (kRowTiles > 3) NUMASERVE_TILE_LOAD(5, fourth + k, x_bytes);
    if constexpr (kRowTiles > 3) NUMASERVE_TILE_DPBF16(3, 5, 6);
  }
  NUMASERVE_TILE_STORE(0, sums, 64);
  if constexpr (kRowTiles > 1) NUMASERVE_TILE_STORE(1, sums + kTileRows * kTileN, 64);
  if constexpr (kRowTiles > 2) NUMASERVE_TILE_STORE(2, sums + 2 * kTileRows * kTileN, 64);
  if constexpr (kRowTiles > 3) NUMASERVE_TILE_STORE(3, sums + 3 * kTileRows * kTileN, 64);
  __asm__ volatile("" ::: "memory");
}

inline void shrink_tile(const ShrinkArgs& s, int64_t row, int64_t rows, int64_t part, int64_t first) {
  alignas(64) float sums[kShrinkRowTiles][kTileRows][kTileN];
  const AdapterTable& t = s.table;
  const int64_t at = (s.adapters[row] - 1) * t.parts + part, left = t.ranks[at] - first;
  const ShrinkFactor factor{.a = t.a + (at * t.rank + first) * t.depth,
                            .depth = t.depth,
                            .count = left < kTileN ? left : kTileN,
                            .fetches_ahead = s.rows <= kStreamedRows};
  const bf16* x = s.x + row * s.ldx;
  const int64_t row_tiles = ceil_div(rows, kTileRows);
  tile_begin(rows);
  switch (row_tiles) {
    case 1:
      multiply_shrink_tiles<1>(x, s.ldx, rows, factor, sums[0][0]);
      break;
    case 2:
      multiply_shrink_tiles<2>(x, s.ldx, rows, factor, sums[0][0]);
      break;
    case 3:
      multiply_shrink_tiles<3>(x, s.ldx, rows, factor, sums[0][0]);
      break;
    default:
      multiply_shrink_tiles<4>(x, s.ldx, rows, factor, sums[0][0]);
  }
  const F32x16 scale = F32x16::set1(t.scales[at]);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t tile = r / kTileRows < row_tiles - 1 ? r / kTileRows : row_tiles - 1;
    const F32x16 value = F32x16::load(sums[tile][r - shrink_row(rows, tile)]) * scale;
    auto* to = reinterpret_cast<bf16*>(s.shrunk + (row + r) * s.ld + part * shrunk_columns(t.rank) + first);
    value.store(to);
    (value - F32x16::load(to)).store(to + kTileN);
  }
}

}  // namespace
}  // namespace numaserve
