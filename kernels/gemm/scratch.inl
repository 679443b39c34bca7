// The memory of a GEMM's thread between its steps.
#pragma once

#include "kernels/include/types.h"

namespace numaserve {
namespace {

inline constexpr int64_t kMostTotals = 64 << 10;     // no slab has more groups times rows
inline constexpr int64_t kWidenedBytes = 16 << 10;   // a block of widened codes of two panels: half an L1 cache
inline constexpr int64_t kPackedRowBytes = 1 << 20;  // of a row block's activations in a slab
// How many of them a row may have: the height of a last pass may be one more than the rows that are left.
inline constexpr int64_t packed_room(int64_t rows) { return kPackedRowBytes / (rows + 1); }
// How many k tiles of them, in whole row tiles.
inline constexpr int64_t packed_tiles_room(int64_t rows) { return kPackedRowBytes / (round_up(rows, 16) * kLineBytes); }

// The type that a format's products are summed in.
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
  const T* ahead;  // what to fetch meanwhile, as much as the block has
  bool streamed;   // there is nothing to reuse: what is fetched is a little ahead of what is read
};

// What products of groups leave each other (grouped_amx.inl); it stays in the first level.
inline constexpr int kWidenedTiles = 4;  // of each of two panels
inline constexpr int kKeptColumns = 8;   // of the groups under way: two before and two after the one that is multiplied
struct GroupBatches {
  alignas(64) std::byte tiles[kWidenedTiles * 2 * kTileBytes];
  alignas(64) float sums[2][32 * 32];                     // of a group, fp32 or int32
  alignas(64) float columns[kKeptColumns][2][2][kTileN];  // of groups and panels: scales and offsets
};

struct GemmScratch {
  alignas(64) float c[kMostPanels / 2 * kRowBlock * 32];     // results of a block, fp32 or int32
  alignas(64) float part[kMostPanels / 2 * kRowBlock * 32];  // of a part of k after the first
  alignas(64) std::byte tiles[kWidenedBytes];
  // Totals of the activations of a slab of groups, [groups][rows]; see sum_groups, and copy_scales for what quantized
  // ones have.
  alignas(64) float totals[kMostTotals];
  int64_t first_group, total_rows;
  // Activations as micro-tiles that pack them read them: words [first_word, first_word + words) of k, or as many k
  // tiles from `first_group` on; see packed_rows.inl, packed_tiles_amx.inl and group_rows_amx.inl.
  alignas(64) std::byte rows[kPackedRowBytes + 16 * kLineBytes];  // see pack_pass
  const ActivationWord* packed;
  int64_t first_word, words;
  int together;  // rows of a pass
  GroupBatches batches;
};

}  // namespace
}  // namespace numaserve
