// The ceiling of large products with tile registers: the loop nest of a product whose results are thrown away.
//
// Random tiles in the first level, the other measured peak, are further from a product than a product is from them: it
// also reads activations from the second level, stores and loads sums, and fetches weights from memory. This nest does
// all of that, in the order that reached most of the zeros' peak in a prototype (0.56), and nothing else. It shares no
// code with the products, so that a change of theirs does not move it.
//
// A pair of panels has 5 blocks of 13 k tiles, which 8 groups of 32 rows pass by. Activations come from the second
// level in the order of use, past the first one. Weights of a block are in the first level, and 4 lines of the next
// block are fetched from memory at each k tile. From one group to the next, sums are stored and loaded one by one.
#pragma once

#include <immintrin.h>

#if !defined(NUMASERVE_TILE_HEADER)  // read by itself
#define NUMASERVE_TILE_HEADER "kernels/gemm/tiles/tile_amx.h"
#endif
#include "kernels/gemm/tiles/tile.h"
#include "kernels/include/kernel_table.h"
#include "kernels/simd/prefetch.h"

namespace numaserve {
namespace {

inline constexpr int64_t kNestGroups = kNestRows / 32, kNestBlockBytes = kNestBlockTiles * 2 * kTileBytes;
inline constexpr int64_t kNestLines = kNestBlockBytes / kLineBytes / (kNestGroups * kNestBlockTiles);
inline constexpr int64_t kNestGroupSums = 4 * kTileBytes;
static_assert(kNestLines * kNestGroups * kNestBlockTiles * kLineBytes == kNestBlockBytes);

inline void fetch_nest_weights(const std::byte*& line) {
  for (int64_t i = 0; i < kNestLines; ++i, line += kLineBytes) prefetch_line(line);
}

#define NUMASERVE_NEST_SUM(register, place, before, sums, fresh)                                  \
  do {                                                                                            \
    if ((before) != nullptr) NUMASERVE_TILE_STORE(register, (before) + (place) * kTileBytes, 64); \
    if (fresh)                                                                                    \
      NUMASERVE_TILE_ZERO(register);                                                              \
    else                                                                                          \
      NUMASERVE_TILE_LOAD(register, (sums) + (place) * kTileBytes, 64);                           \
  } while (false)

// Passes a group of rows by a block. `before` are the sums of the group before, which the registers hold, or null, and
// `after` those of the group that follows.
template <class T>
inline void nest_group(const std::byte* rows, const std::byte* weights, std::byte* before, const std::byte* sums,
                       const std::byte* after, bool fresh, const std::byte*& ahead) {
  NUMASERVE_TILE_LOAD(6, weights, 64);
  NUMASERVE_TILE_LOAD_PAST_FIRST(4, rows, 64);
  NUMASERVE_NEST_SUM(0, 0, before, sums, fresh);
  NUMASERVE_TILE_DOT(T, 0, 4, 6);
  fetch_nest_weights(ahead);
  NUMASERVE_TILE_LOAD_PAST_FIRST(5, rows + kTileBytes, 64);
  NUMASERVE_NEST_SUM(2, 1, before, sums, fresh);
  NUMASERVE_TILE_DOT(T, 2, 5, 6);
  NUMASERVE_TILE_LOAD(7, weights + kTileBytes, 64);
  NUMASERVE_NEST_SUM(1, 2, before, sums, fresh);
  NUMASERVE_TILE_DOT(T, 1, 4, 7);
  NUMASERVE_NEST_SUM(3, 3, before, sums, fresh);
  NUMASERVE_TILE_DOT(T, 3, 5, 7);
  for (int64_t tile = 1; tile < kNestBlockTiles; ++tile) {
    rows += 2 * kTileBytes;
    weights += 2 * kTileBytes;
    NUMASERVE_TILE_LOAD(6, weights, 64);
    NUMASERVE_TILE_LOAD(7, weights + kTileBytes, 64);
    NUMASERVE_TILE_LOAD_PAST_FIRST(4, rows, 64);
    NUMASERVE_TILE_LOAD_PAST_FIRST(5, rows + kTileBytes, 64);
    NUMASERVE_TILE_DOT(T, 0, 4, 6);
    fetch_nest_weights(ahead);
    NUMASERVE_TILE_DOT(T, 2, 5, 6);
    if (tile <= 8)
      for (int64_t i = 0; i < 8; ++i) prefetch_written(after + ((tile - 1) * 8 + i) * kLineBytes);
    NUMASERVE_TILE_DOT(T, 1, 4, 7);
    NUMASERVE_TILE_DOT(T, 3, 5, 7);
  }
}

template <class T>
inline int64_t nest_of(const NestMemory& m) {
  tile_begin(kTileRows);
  const int64_t blocks = m.pairs * kNestBlocks;
  for (int64_t block = 0; block < blocks; ++block) {
    const std::byte* rows = m.rows + block % kNestBlocks * kNestGroups * kNestBlockBytes;
    const std::byte* weights = m.weights + block * kNestBlockBytes;
    const std::byte* ahead = block + 1 < blocks ? weights + kNestBlockBytes : m.weights;
    std::byte *sums = m.sums + block / kNestBlocks % kNestSums * kNestGroups * kNestGroupSums, *before = nullptr;
    for (int64_t group = 0; group < kNestGroups; ++group, rows += kNestBlockBytes) {
      std::byte* own = sums + group * kNestGroupSums;
      const std::byte* after = group + 1 < kNestGroups ? own + kNestGroupSums : sums;
      nest_group<T>(rows, weights, before, own, after, block % kNestBlocks == 0, ahead);
      before = own;
    }
    NUMASERVE_TILE_STORE(0, before, 64);
    NUMASERVE_TILE_STORE(2, before + kTileBytes, 64);
    NUMASERVE_TILE_STORE(1, before + 2 * kTileBytes, 64);
    NUMASERVE_TILE_STORE(3, before + 3 * kTileBytes, 64);
  }
  return blocks * kNestBlockTiles * kNestRows * 32 * 2 * kTileDepth<T>;
}

inline int64_t nest(WeightFormat format, const NestMemory& memory) {
  return takes_int8(format) ? nest_of<int8_t>(memory) : nest_of<bf16>(memory);
}

#undef NUMASERVE_NEST_SUM

}  // namespace
}  // namespace numaserve
