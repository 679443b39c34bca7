// What low-rank adapters add to sums, as the first steps of k of a product of many copied rows with bf16 weights.
#pragma once

#include <immintrin.h>

#if !defined(NUMASERVE_TILE_HEADER)  // read by itself
#define NUMASERVE_TILE_HEADER "kernels/gemm/tiles/tile_amx.h"
#endif
#include "kernels/gemm/expand_amx.inl"
#include "kernels/gemm/tiles/tile.h"
#include "kernels/include/dense_args.h"

namespace numaserve {
namespace {

inline constexpr int64_t kTileSums = kTileRows * kTileN;

// The four sums are tiles one after the other: of two row tiles by the first panel, and by the second one.
#define NUMASERVE_SUM_LOAD(register, tile, c, fresh)               \
  do {                                                             \
    if (fresh)                                                     \
      NUMASERVE_TILE_ZERO(register);                               \
    else                                                           \
      NUMASERVE_TILE_LOAD(register, (c) + (tile) * kTileSums, 64); \
  } while (false)
#define NUMASERVE_SUM_STORE(register, tile, c) NUMASERVE_TILE_STORE(register, (c) + (tile) * kTileSums, 64)

// The steps of a row block whose rows have one adapter, for both panels of a pair.
struct FirstSteps {
  ExpandSteps halves[2];
  const float* shrunk;
  int64_t ld, rows;
  // The last rows, if they are fewer than pass together: those that do not exist are zero.
  alignas(64) float rest[2][kExpandSteps][2 * kTileRows][kTileN];
};

// Returns false for rows of several adapters, and for other numbers of steps than fit. Then nothing is made.
inline bool make_first_steps(const ExpandArgs& e, int64_t row, int64_t rows, int64_t panel, FirstSteps& to) {
  const int32_t adapter = e.adapters[row];
  for (int64_t r = 0; r < rows; ++r)
    if (e.adapters[row + r] != adapter) return false;
  if (adapter == 0) return false;
  to.shrunk = e.shrunk + row * e.ld;
  to.ld = e.ld;
  to.rows = rows;
  bool fit = true;
  const int64_t whole = rows / (2 * kTileRows) * (2 * kTileRows);
  for (int half = 0; half < 2; ++half) {
    ExpandSteps& steps = to.halves[half];
    steps.count = 0;
    for_expand_steps(e, adapter - 1, panel + half, [&](const bf16* b, int64_t ranks, int64_t column) {
      fit = fit && steps.count < kExpandSteps;
      if (!fit) return;
      make_tile_of_b(b, ranks, steps.tiles[steps.count]);
      for (int64_t r = whole; whole < rows && r < whole + 2 * kTileRows; ++r)
        _mm512_store_ps(to.rest[half][steps.count][r - whole],
                        r < rows ? _mm512_loadu_ps(to.shrunk + r * e.ld + column) : _mm512_setzero_ps());
      steps.columns[steps.count++] = column;
    });
    fit = fit && steps.count > 0;
  }
  return fit;
}

#define NUMASERVE_SUM_SWITCH(register, tile, before)                      \
  do {                                                                    \
    if ((before) != nullptr) NUMASERVE_SUM_STORE(register, tile, before); \
    NUMASERVE_TILE_ZERO(register);                                        \
  } while (false)

// Begins the sums of up to 32 rows from row `r` of the block on. They take the registers of `before`, unless it is
// null.
template <int kRowTiles, class Sum>
inline void begin_with_steps(const FirstSteps& s, int64_t r, Sum* before) {
  const bool is_whole = r + 2 * kTileRows <= s.rows;
  const int64_t ld = is_whole ? s.ld : kTileN, bytes = ld * static_cast<int64_t>(sizeof(float));
  const auto rows = [&](int half, int step) {
    return is_whole ? s.shrunk + r * s.ld + s.halves[half].columns[step] : s.rest[half][step][0];
  };
  NUMASERVE_TILE_LOAD(6, s.halves[0].tiles[0], 64);
  NUMASERVE_TILE_LOAD(4, rows(0, 0), bytes);
  NUMASERVE_SUM_SWITCH(0, 0, before);
  NUMASERVE_TILE_DPBF16(0, 4, 6);
  NUMASERVE_SUM_SWITCH(2, 1, before);
  if constexpr (kRowTiles == 2) {
    NUMASERVE_TILE_LOAD(5, rows(0, 0) + kTileRows * ld, bytes);
    NUMASERVE_TILE_DPBF16(2, 5, 6);
  }
  NUMASERVE_TILE_LOAD(7, s.halves[1].tiles[0], 64);
  NUMASERVE_TILE_LOAD(4, rows(1, 0), bytes);
  NUMASERVE_SUM_SWITCH(1, 2, before);
  NUMASERVE_TILE_DPBF16(1, 4, 7);
  NUMASERVE_SUM_SWITCH(3, 3, before);
  if constexpr (kRowTiles == 2) {
    NUMASERVE_TILE_LOAD(5, rows(1, 0) + kTileRows * ld, bytes);
    NUMASERVE_TILE_DPBF16(3, 5, 7);
  }
  for (int i = 1; i < s.halves[0].count; ++i) {
    NUMASERVE_TILE_LOAD(6, s.halves[0].tiles[i], 64);
    NUMASERVE_TILE_LOAD(4, rows(0, i), bytes);
    NUMASERVE_TILE_DPBF16(0, 4, 6);
    if constexpr (kRowTiles == 2) NUMASERVE_TILE_LOAD(5, rows(0, i) + kTileRows * ld, bytes);
    if constexpr (kRowTiles == 2) NUMASERVE_TILE_DPBF16(2, 5, 6);
  }
  for (int i = 1; i < s.halves[1].count; ++i) {
    NUMASERVE_TILE_LOAD(7, s.halves[1].tiles[i], 64);
    NUMASERVE_TILE_LOAD(4, rows(1, i), bytes);
    NUMASERVE_TILE_DPBF16(1, 4, 7);
    if constexpr (kRowTiles == 2) NUMASERVE_TILE_LOAD(5, rows(1, i) + kTileRows * ld, bytes);
    if constexpr (kRowTiles == 2) NUMASERVE_TILE_DPBF16(3, 5, 7);
  }
}

#undef NUMASERVE_SUM_SWITCH

// Writes what the sums `c`, as tiles, begin with. `made` has space for the rows.
inline void begin_copied_sums(const ExpandArgs& e, int64_t row, int64_t rows, int64_t panel, float* made, float* c) {
  constexpr int64_t kTogether = 2 * kTileRows;
  expand_pair(e, row, rows, panel, made);
  for (int64_t r = 0; r < round_up(rows, kTogether); ++r)
    for (int64_t half = 0; half < 2; ++half) {
      const F32x16 value = r < rows ? F32x16::load(made + r * kExpandedColumns + half * kTileN) : F32x16::zero();
      value.store(c + r / kTogether * 2 * kTogether * kTileN + (half * kTogether + r % kTogether) * kTileN);
    }
}

}  // namespace
}  // namespace numaserve
