// Products of many rows with tile registers, of activations that are copied tile by tile first, where that pays. In
// place the 16 rows of a tile whose width is a multiple of 2 KiB fall into one or two sets of the first level, which
// has 64 of 12 lines: they evict each other, and the block of weights that should stay. A tile that is copied fills 16
// sets with a line each. oneDNN copies for widths of powers of two (lda_big_pow2 in brgemm_matmul_utils.hpp).
#pragma once

#include <immintrin.h>

#include "kernels/gemm/scratch.inl"
#include "kernels/gemm/tile.h"
#include "kernels/include/kernel_table.h"

namespace numaserve {
namespace {

inline bool packs_tiles(const GemmArgs& g, int64_t row_bytes, int64_t rows) {
  constexpr int64_t kEvictingBytes = 2048;
  if (rows <= kStreamedRows || g.blocking.tile_packing == TilePacking::kNever) return false;
  return g.blocking.tile_packing == TilePacking::kAlways || row_bytes % kEvictingBytes == 0;
}

// Copies k tiles of some rows to `scratch.rows`: [row tiles][k tiles][16] lines. The last row tile ends with the last
// row, as it does in place.
template <class T>
inline void pack_tiles(const GemmArgs& g, int64_t row, int64_t rows, Range k, GemmScratch& scratch) {
  const int64_t row_bytes = g.lda * static_cast<int64_t>(sizeof(T)), tiles = k.end - k.begin;
  scratch.packed = nullptr;
  if (!packs_tiles(g, row_bytes, rows)) return;
  scratch.first_word = k.begin * kLines;
  scratch.words = tiles * kLines;
  scratch.packed = reinterpret_cast<const ActivationWord*>(scratch.rows);
  const auto* from = static_cast<const std::byte*>(g.a) + row * row_bytes + k.begin * kLineBytes;
  std::byte* to = scratch.rows;
  for (int64_t r = 0; r < rows; r += kTileRows) {
    const std::byte* first = from + (r + kTileRows < rows ? r : rows - kTileRows) * row_bytes;
    for (int64_t kt = 0; kt < tiles; ++kt)
      for (int64_t line = 0; line < kTileRows; ++line, to += kLineBytes)
        _mm512_store_si512(to, _mm512_loadu_si512(first + line * row_bytes + kt * kLineBytes));
  }
}

// The tiles from k tile `kt` on of `rows` rows from row `r` of the block on, packed or in place.
template <class T>
inline RowTiles<T> tiles_of(const GemmArgs& g, const GemmScratch& scratch, int64_t row, int64_t r, int rows,
                            int64_t kt) {
  constexpr int64_t kTile = kTileBytes / static_cast<int64_t>(sizeof(T));
  if (scratch.packed == nullptr)
    return tiles_in_place<kLines>(static_cast<const T*>(g.a) + (row + r) * g.lda + kt * kTileDepth<T>, g.lda, rows);
  const int64_t row_tile = scratch.words / kLines * kTile;
  const T* first = reinterpret_cast<const T*>(scratch.packed) + r / kTileRows * row_tile +
                   (kt - scratch.first_word / kLines) * kTile;
  return {first, first + row_tile, kTile, kTileDepth<T>};
}

// `count` k tiles of two panels by up to 32 rows; c is [rows][32].
template <class T, class Sum>
inline void multiply_with_loads(const GemmArgs& g, const RowTiles<T>& a, const T* block, int64_t count, bool streamed,
                                Sum* c, int rows, bool accumulate) {
  constexpr int64_t kTile = kTileBytes / static_cast<int64_t>(sizeof(T));
  const auto tile = [block](int64_t t) { return block + t * 2 * kTile; };
  if (g.blocking.tile_loads == TileLoads::kBefore)
    multiply_row_tiles<TileLoads::kBefore>(a, tile, kTile, count, c, 32, rows, accumulate);
  else if (streamed && g.blocking.tile_loads == TileLoads::kStreamed)
    multiply_row_tiles<TileLoads::kStreamed>(a, tile, kTile, count, c, 32, rows, accumulate);
  else
    multiply_row_tiles<TileLoads::kBetween>(a, tile, kTile, count, c, 32, rows, accumulate);
}

}  // namespace
}  // namespace numaserve
