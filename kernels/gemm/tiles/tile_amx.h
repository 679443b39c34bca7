// The GEMM micro-tile of the amx set: 1 or 2 by 2 tiles of up to 16 x 16 results. The contract of `tile_gemm` is in
// tile_portable.h. Tile registers: 0-3 results (row tile * 2 + panel), 4-5 activations, 6-7 weights.
//
// The tiles of a k tile are loaded before its products, weights first and in memory order, which suits the hardware
// prefetcher. Measured with AMX, one core: loading each tile just before its first product, which is oneDNN's order
// (jit_brgemm_amx_uker.cpp), is 0 to 5 % slower, and TILELOADDT1 is no faster.
//
// Fewer than 16 rows have their own tile configuration, so that no surplus rows are read, multiplied or written.
// LDTILECFG takes some 200 cycles (Intel's Optimization Reference Manual, throughput of AMX instructions). It is
// therefore executed once per product or item (`tile_begin`), and with more rows the last tile overlaps the previous
// one instead.
#pragma once

#include <immintrin.h>

#include "kernels/gemm/tiles/random_operands.h"
#include "kernels/gemm/tiles/sums_avx512.h"
#include "kernels/include/types.h"

#if defined(NUMASERVE_TILES_HEADER)
#include NUMASERVE_TILES_HEADER
#else
#include "kernels/gemm/tiles/tiles_hardware.h"
#endif

namespace numaserve {
namespace {

inline constexpr int kActivationOffset = 0;  // TDPBSSD takes both operands signed
// Two panels of weights, 32 rows of activations and their results: with 48 KiB eight k tiles. Measured with AMX, as a
// fraction of the bf16 peak, with activations in the second level: 65 % with 8 tiles, 55 % with 16.
inline constexpr FirstLevelUse kFirstLevelUse = {
    .quarters = 3, .tile_bytes = 4 * kTileBytes, .other_bytes = 32 * 32 * 4};
inline constexpr int kKvRowsInRegisters = 0;
inline constexpr bool kPacksRows = false;
inline constexpr bool kPacksTiles = true;  // see packed_tiles_amx.inl
// Products of groups with up to this number of rows take fewer cycles with vectors than with tiles: sums of tiles have
// to be stored before they are scaled, group by group. Measured time with vectors divided by time with tiles: groups of
// 32 with minima 0.82-0.92 with 9 to 12 rows, 1.0-1.07 with 16. Without minima, where tiles need less scaling,
// 0.94-1.03 with 10 rows, 1.0-1.08 with 12. Groups of 64: 0.94 with 6 rows, 1.18 with 7. Groups of 128: 1.15 with 3
// rows, 1.51 with 8. TDPBF16PS rounds differently from VDPBF16PS: all rows of bf16 go through tiles, so that the bits
// are the same in any batch.
template <class Element>
inline constexpr int64_t kRowsInRegisters = sizeof(Element) == 1 ? 12 : 0;
template <class Element>
inline int64_t rows_in_registers(int64_t group, Offsets offsets) {
  if (sizeof(Element) > 1) return 0;
  if (group <= 32) return offsets == Offsets::kMinima ? kRowsInRegisters<Element> : 8;
  return group <= 64 ? 6 : 2;
}
// With any number of rows, passes prefetch groups. From the third level, two cores then read 1.5 to 1.9 times as much
// as with the hardware prefetcher alone; from memory, 1.1 times.
inline constexpr int kFewestFetched = 1;

// Returns the number of rows, of `left`, that products take at once: 32, or 16 where 32 would leave fewer than 16.
inline int rows_at_once(int64_t left) {
  if (left <= 2 * kTileRows) return static_cast<int>(left);
  return left < 3 * kTileRows ? kTileRows : 2 * kTileRows;
}

inline void tile_begin(int64_t rows) {
  NUMASERVE_TILE_CONFIGURE(static_cast<int>(rows < kTileRows ? rows : kTileRows));
}

// Macros rather than functions: tile numbers are part of the instruction.
#define NUMASERVE_TILE_DOT(T, c, a, b)         \
  do {                                         \
    if constexpr (sizeof(T) == sizeof(bf16)) { \
      NUMASERVE_TILE_DPBF16(c, a, b);          \
    } else if constexpr (T(-1) < T(0)) {       \
      NUMASERVE_TILE_DPBSSD(c, a, b);          \
    } else {                                   \
      NUMASERVE_TILE_DPBSUD(c, a, b);          \
    }                                          \
  } while (false)

// The place of the activations of up to 32 rows: the first tile of each row tile, and the distances, in elements, to
// the next k tile and to the next row. The second row tile ends with the last row.
template <class T>
struct RowTiles {
  const T *first, *second;
  int64_t k_tile, row;
};
template <class T>
inline RowTiles<T> tiles_in_place(const T* a, int64_t lda, int rows) {
  return {a, rows > kTileRows ? a + (rows - kTileRows) * lda : a, kTileDepth<T>, lda};
}

template <int kRowTiles, class T, class TileAt, class Sum, class Beside>
inline void amx_block(const RowTiles<T>& a, TileAt b, int64_t panel_stride, int64_t k_tiles, Sum* c, int64_t ldc,
                      int rows, bool accumulate, Beside&& beside) {
  const int64_t a_bytes = a.row * static_cast<int64_t>(sizeof(T));
  const int64_t c_bytes = ldc * static_cast<int64_t>(sizeof(Sum));
  Sum* c1 = kRowTiles == 2 ? c + (rows - kTileRows) * ldc : c;
  // gcc does not know that tile loads read memory: without this, stores to `a` or `c` could sink below them.
  __asm__ volatile("" ::: "memory");
  if (accumulate) {
    NUMASERVE_TILE_LOAD(0, c, c_bytes);
    NUMASERVE_TILE_LOAD(1, c + kTileN, c_bytes);
    if constexpr (kRowTiles == 2) NUMASERVE_TILE_LOAD(2, c1, c_bytes);
    if constexpr (kRowTiles == 2) NUMASERVE_TILE_LOAD(3, c1 + kTileN, c_bytes);
  } else {
    NUMASERVE_TILE_ZERO(0);
    NUMASERVE_TILE_ZERO(1);
    if constexpr (kRowTiles == 2) NUMASERVE_TILE_ZERO(2);
    if constexpr (kRowTiles == 2) NUMASERVE_TILE_ZERO(3);
  }
  for (int64_t kt = 0; kt < k_tiles; ++kt) {
    const T* tile = b(kt);
    NUMASERVE_TILE_LOAD(6, tile, 64);
    NUMASERVE_TILE_LOAD(7, tile + panel_stride, 64);
    NUMASERVE_TILE_LOAD(4, a.first + kt * a.k_tile, a_bytes);
    if constexpr (kRowTiles == 2) NUMASERVE_TILE_LOAD(5, a.second + kt * a.k_tile, a_bytes);
    NUMASERVE_TILE_DOT(T, 0, 4, 6);
    if constexpr (kRowTiles == 2) NUMASERVE_TILE_DOT(T, 2, 5, 6);
    beside();
    NUMASERVE_TILE_DOT(T, 1, 4, 7);
    if constexpr (kRowTiles == 2) NUMASERVE_TILE_DOT(T, 3, 5, 7);
  }
  NUMASERVE_TILE_STORE(0, c, c_bytes);
  NUMASERVE_TILE_STORE(1, c + kTileN, c_bytes);
  if constexpr (kRowTiles == 2) NUMASERVE_TILE_STORE(2, c1, c_bytes);
  if constexpr (kRowTiles == 2) NUMASERVE_TILE_STORE(3, c1 + kTileN, c_bytes);
}

struct Nothing {
  void operator()() const {}
};

// `beside` is called at each k tile and does the vector work of that time.
template <class T, class TileAt, class Sum, class Beside = Nothing>
inline void multiply_row_tiles(const RowTiles<T>& a, TileAt b, int64_t panel_stride, int64_t k_tiles, Sum* c,
                               int64_t ldc, int rows, bool accumulate, Beside&& beside = {}) {
  if (rows > kTileRows)
    amx_block<2>(a, b, panel_stride, k_tiles, c, ldc, rows, accumulate, beside);
  else
    amx_block<1>(a, b, panel_stride, k_tiles, c, ldc, rows, accumulate, beside);
}

template <class T, class TileAt, class Sum>
inline void tile_gemm(const T* a, int64_t lda, TileAt b, int64_t panel_stride, int panels, int64_t k_tiles, Sum* c,
                      int64_t ldc, int rows, bool accumulate) {
  const RowTiles<T> tiles = tiles_in_place(a, lda, rows);
  for (int panel = 0; panel < panels; panel += 2) {
    const auto tile = [&](int64_t kt) { return b(kt) + panel * panel_stride; };
    multiply_row_tiles(tiles, tile, panel_stride, k_tiles, c + panel * kTileN, ldc, rows, accumulate);
  }
}

// Runs as many multiply-adds as the processor can, to measure its peak; returns the number of operations.
template <class T>
inline int64_t tile_peak(int64_t rounds) {
  alignas(64) static const std::byte kZeros[kTileBytes] = {};
  tile_begin(kTileRows);
  NUMASERVE_TILE_ZERO(0);
  NUMASERVE_TILE_ZERO(1);
  NUMASERVE_TILE_ZERO(2);
  NUMASERVE_TILE_ZERO(3);
  NUMASERVE_TILE_LOAD(4, kZeros, 64);
  NUMASERVE_TILE_LOAD(5, kZeros, 64);
  NUMASERVE_TILE_LOAD(6, kZeros, 64);
  NUMASERVE_TILE_LOAD(7, kZeros, 64);
  for (int64_t i = 0; i < rounds; ++i) {
    NUMASERVE_TILE_DOT(T, 0, 4, 6);
    NUMASERVE_TILE_DOT(T, 1, 4, 7);
    NUMASERVE_TILE_DOT(T, 2, 5, 6);
    NUMASERVE_TILE_DOT(T, 3, 5, 7);
  }
  return rounds * 4 * 2 * kTileRows * kTileN * kTileDepth<T>;
}

// The same with random operands, whose tiles are loaded from the first level as in a product.
template <class T>
inline int64_t tile_peak_of_random(int64_t rounds) {
  constexpr int64_t kDepth = 8, kLoaded = 4 * kTileBytes;  // k tiles of two panels and of two row tiles
  const RandomOperands<T, kDepth * kLoaded> operands;
  const auto* tiles = reinterpret_cast<const std::byte*>(operands.words);
  tile_begin(kTileRows);
  NUMASERVE_TILE_ZERO(0);
  NUMASERVE_TILE_ZERO(1);
  NUMASERVE_TILE_ZERO(2);
  NUMASERVE_TILE_ZERO(3);
  for (int64_t i = 0; i < rounds; ++i) {
    const std::byte* of_step = tiles + i % kDepth * kLoaded;
    NUMASERVE_TILE_LOAD(6, of_step, 64);
    NUMASERVE_TILE_LOAD(7, of_step + kTileBytes, 64);
    NUMASERVE_TILE_LOAD(4, of_step + 2 * kTileBytes, 64);
    NUMASERVE_TILE_LOAD(5, of_step + 3 * kTileBytes, 64);
    NUMASERVE_TILE_DOT(T, 0, 4, 6);
    NUMASERVE_TILE_DOT(T, 2, 5, 6);
    NUMASERVE_TILE_DOT(T, 1, 4, 7);
    NUMASERVE_TILE_DOT(T, 3, 5, 7);
  }
  return rounds * 4 * 2 * kTileRows * kTileN * kTileDepth<T>;
}

}  // namespace
}  // namespace numaserve
