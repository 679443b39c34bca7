// Memory that a GEMM's thread keeps between its steps.
#pragma once

#include <cstddef>

#if defined(NUMASERVE_TILES_HEADER)
#include "kernels/gemm/first_steps_amx.inl"
#endif
#include "kernels/include/dense_args.h"
#include "kernels/include/types.h"

namespace numaserve {
namespace {

inline constexpr int64_t kMostTotals = 64 << 10;     // no slab has more groups times rows
inline constexpr int64_t kWidenedBytes = 16 << 10;   // a block of widened codes of two panels: half an L1 cache
inline constexpr int64_t kPackedRowBytes = 1 << 20;  // of a row block's activations in a slab
// The bytes of packed activations for each row: a last pass may be one row higher than the remaining rows.
inline constexpr int64_t packed_room(int64_t rows) { return kPackedRowBytes / (rows + 1); }
// The number of packed k tiles that fit, in whole row tiles.
inline constexpr int64_t packed_tiles_room(int64_t rows) { return kPackedRowBytes / (round_up(rows, 32) * kLineBytes); }
// The number of k tiles in a slab with tiles: fewer rows have more, as many bytes of the second level.
inline int64_t slab_of_tiles(const GemmArgs& g, int64_t rows) {
  return g.blocking.slab_tiles * kRowBlock / round_up(rows, kRowUnit);
}

// The type of the sums of a format's products.
template <class T>
struct SumOf {
  using type = float;
};
template <>
struct SumOf<int8_t> {
  using type = int32_t;
};

// A block of weights of two panels, by which all rows of a row block pass.
template <class T>
struct TileBlock {
  int64_t row, rows, panel, first, count;  // the rows' first one, and k tiles
  const T* tiles;
  bool streamed;  // nothing is reused: the memory to prefetch is a little ahead of the reads
};

// Data that products of successive groups share (grouped_amx.inl); it stays in the first level.
inline constexpr int kRingTiles = 4;      // for each of two panels, with few rows
inline constexpr int kWidenedTiles = 12;  // the same with many rows
inline constexpr int kKeptColumns = 16;   // of the groups in a block, and of two before
struct GroupBatches {
  alignas(64) std::byte tiles[kWidenedTiles * 2 * kTileBytes];
  alignas(64) float sums[2][32 * 32];                     // of a group, fp32 or int32
  alignas(64) float columns[kKeptColumns][2][2][kTileN];  // of groups and panels: scales and offsets
};

// Codes widened to values (scaled_amx.inl): two blocks, of which one is widened while the other one is multiplied.
// With few rows, the first block is a ring of tiles.
inline constexpr int64_t kWidenedBlock = 8, kMostWidened = 10;  // k tiles; see CopiedBlocks
struct WidenedBlocks {
  alignas(64) std::byte tiles[2][kMostWidened * 2 * kTileBytes];
  int place;             // of the block that is widened already: it belongs to
  int64_t panel, first;  // this panel, from this k tile on
  int64_t panels_end;    // the end of the share
};

// Panels whose bf16 results are written past the caches (streamed_lines_amx.inl), and the first halves of the lines of
// gated results, by rows of the block.
struct StreamedLines {
  Range panels;
  alignas(64) bf16 halves[kMostRowBlock * kTileN];
};

// Sums of a pair of panels that are finished during the products of the next pair (late_sums_amx.inl).
struct LateSums {
  const void* sums;
  int64_t row, panel;  // of the row block
  Range rows{0, 0};    // of the row block, that are left
};

struct GemmScratch {
  alignas(64) float c[kMostPanels / 2 * kMostRowBlock * 32];     // results of a block, fp32 or int32
  alignas(64) float part[kMostPanels / 2 * kMostRowBlock * 32];  // of a part of k after the first
  alignas(64) std::byte tiles[kWidenedBytes];
  // Totals of the activations of a slab of groups, [groups][rows]; see sum_groups. For quantized activations see
  // copy_scales.
  alignas(64) float totals[kMostTotals];
  int64_t first_group, total_rows;
  // Packed activations, in the order of the micro-tiles' reads: words [first_word, first_word + words) of k, or `words`
  // k tiles from `first_group` on. See packed_rows.inl, packed_tiles_amx.inl, copied_blocks_amx.inl and
  // group_rows_amx.inl.
  alignas(64) std::byte rows[kPackedRowBytes + 16 * kLineBytes];  // see pack_pass
  const ActivationWord* packed;
  int64_t first_word, words;
  int together;                                 // rows of a pass
  bool copies;                                  // whether a share's activations are copied by blocks; see copies_blocks
  GemmShare share;                              // in progress, of formats without groups
  alignas(64) float row_scales[kMostRowBlock];  // of a row block of int8
  GroupBatches batches;
  StreamedLines streamed;
  LateSums late;
  WidenedBlocks widened;
#if defined(NUMASERVE_TILES_HEADER)
  // What adapters add to the sums of a pair of panels.
  alignas(64) float expanded[kMostRowBlock * kExpandedColumns];
  FirstSteps added;
#endif
};
// Tiles of copied activations and of weights, which begin at multiples of a tile, are read side by side. With the same
// address within a page a product takes 1.08 times as long (a virtual Xeon with AMX); a line apart suffices.
static_assert(offsetof(GemmScratch, rows) % 4096 == kLineBytes);
static_assert(offsetof(GemmScratch, widened) % kTileBytes != kLineBytes);

}  // namespace
}  // namespace numaserve
