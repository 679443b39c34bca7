// Sums of a pair of panels wait until the next pair, and are then finished a row or so at each k tile. During the last
// block of k of their own pair, finishing takes longer than the products. Measured with AMX, 512 rows of Llama-1B: gate
// and up 1.04 (bf16) and 1.09 (int8) times the speed, other products 1.0 to 1.06.
#pragma once

#if !defined(NUMASERVE_TILE_HEADER)  // read by itself
#define NUMASERVE_TILE_HEADER "kernels/gemm/tiles/tile_amx.h"
#endif
#include "kernels/gemm/epilogue.inl"
#include "kernels/gemm/scratch.inl"
#include "kernels/gemm/streamed_lines_amx.inl"
#include "kernels/include/kernel_table.h"

namespace numaserve {
namespace {

inline constexpr int64_t kRowTileRows = 2 * kTileRows;  // that pass together

// Finishes up to `most` of the late rows, all of the same 32 rows.
template <class Sum>
inline void finish_late(const GemmArgs& g, GemmScratch& scratch, int64_t most) {
  LateSums& late = scratch.late;
  const int64_t first = late.rows.begin, within = first % kRowTileRows, left = late.rows.end - first;
  if (left == 0) return;
  const int64_t below = left < kRowTileRows - within ? left : kRowTileRows - within,
                count = most < below ? most : below;
  const Sum* c = static_cast<const Sum*>(late.sums) + (first - within) * 32 + within * kSumsInTiles.row;
  finish_results<kSumsInTiles>(g, c, late.row, first, count, late.panel, scratch);
  late.rows.begin += count;
}
template <class Sum>
inline void finish_all_late(const GemmArgs& g, GemmScratch& scratch) {
  while (scratch.late.rows.begin < scratch.late.rows.end) finish_late<Sum>(g, scratch, kRowTileRows);
}

}  // namespace
}  // namespace numaserve
