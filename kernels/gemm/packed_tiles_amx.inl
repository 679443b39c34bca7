// Products of many rows with tile registers, whose activations are first copied tile by tile where that pays. In place,
// the 16 rows of a tile whose width is a multiple of 2 KiB fall into one or two sets of the first level, which has 64
// sets of 12 lines. They evict each other, and the block of weights that should stay. A copied tile fills 16 sets with
// a line each. oneDNN copies for widths of powers of two (lda_big_pow2 in brgemm_matmul_utils.hpp).
#pragma once

#include <immintrin.h>

#if !defined(NUMASERVE_TILE_HEADER)  // read by itself
#define NUMASERVE_TILE_HEADER "kernels/gemm/tiles/tile_amx.h"
#endif
#include "kernels/gemm/epilogue.inl"
#include "kernels/gemm/scratch.inl"
#include "kernels/gemm/streamed_lines_amx.inl"
#include "kernels/gemm/tiles/tile.h"
#include "kernels/gemm/weights_ahead_amx.inl"
#include "kernels/include/kernel_table.h"

namespace numaserve {
namespace {

// Copies `tiles` tiles of each of `rows` rows to `to`: [row tiles][room][rows of a tile][64 bytes]. `copy` makes a line
// of a tile from `kBytes`. The last row tile ends with the last row. Tiles up to `room` that do not exist are zero.
template <int64_t kBytes, class Copy>
inline void copy_tiles(const std::byte* from, int64_t row_bytes, int64_t rows, int64_t tiles, int64_t room,
                       std::byte* to, Copy&& copy) {
  constexpr int64_t kTogether = 8;  // tiles of a row, whose lines lie side by side
  const int64_t height = rows < kTileRows ? rows : kTileRows, tile_bytes = height * kLineBytes;
  for (int64_t r = 0; r < rows; r += kTileRows, to += room * tile_bytes) {
    const std::byte* first = from + (r + height < rows ? r : rows - height) * row_bytes;
    for (int64_t tile = 0; tile < tiles; tile += kTogether)
      for (int64_t line = 0; line < height; ++line)
        for (int64_t i = tile; i < tile + kTogether && i < tiles; ++i)
          copy(first + line * row_bytes + i * kBytes, to + i * tile_bytes + line * kLineBytes);
    __builtin_memset(to + tiles * tile_bytes, 0, static_cast<size_t>((room - tiles) * tile_bytes));
  }
}

// Function objects, because functions would be called for each line.
inline constexpr auto kWholeLine = [](const std::byte* from, std::byte* to) { NUMASERVE_COPY_LINE(to, from); };

inline bool packs_tiles(int64_t row_bytes, int64_t rows) {
  constexpr int64_t kEvictingBytes = 2048;
  return rows > kStreamedRows && row_bytes % kEvictingBytes == 0;
}

// Copies k tiles of some rows to `scratch.rows`, where that pays.
template <class T>
inline void pack_tiles(const GemmArgs& g, int64_t row, int64_t rows, Range k, GemmScratch& scratch) {
  const int64_t row_bytes = g.lda * static_cast<int64_t>(sizeof(T));
  scratch.packed = nullptr;
  if (!packs_tiles(row_bytes, rows)) return;
  scratch.first_word = k.begin * kLines;
  scratch.words = (k.end - k.begin) * kLines;
  scratch.packed = reinterpret_cast<const ActivationWord*>(scratch.rows);
  const auto* from = static_cast<const std::byte*>(g.a) + row * row_bytes + k.begin * kLineBytes;
  const int64_t tiles = k.end - k.begin;
  copy_tiles<kLineBytes>(from, row_bytes, rows, tiles, tiles, scratch.rows, kWholeLine);
}

// Returns the tiles from k tile `kt` on of `rows` rows from row `r` of the block on, packed or in place.
template <class T>
inline RowTiles<T> tiles_of(const GemmArgs& g, const GemmScratch& scratch, int64_t row, int64_t r, int rows,
                            int64_t kt) {
  constexpr int64_t kTile = kTileBytes / static_cast<int64_t>(sizeof(T));
  if (scratch.packed == nullptr)
    return tiles_in_place(static_cast<const T*>(g.a) + (row + r) * g.lda + kt * kTileDepth<T>, g.lda, rows);
  const int64_t row_tile = scratch.words / kLines * kTile;
  const T* first = reinterpret_cast<const T*>(scratch.packed) + r / kTileRows * row_tile +
                   (kt - scratch.first_word / kLines) * kTile;
  return {first, first + row_tile, kTile, kTileDepth<T>};
}

// Prefetch distance for lines that are read once. The hardware prefetches too, but not beyond a page of 4 KiB. Measured
// with AMX, one core: a sixth to a fourth more bytes per second than without, which is more than a plain loop of loads
// reads. Distances of 256 bytes and 4 KiB are as good with one row, and 5 % worse with more.
inline constexpr int64_t kStreamAhead = 3072;

// Vector work done during the tile products of some rows, a part at each k tile. Tile products take enough cycles to
// hide it; done separately, it would take 10 to 20 % of the time. It finishes the sums of the previous rows, which are
// still in the first level, and prefetches weights from memory. Prefetching all lines of a block at once would fill the
// miss buffers that tile loads need.
template <class T, class Sum>
struct BesideTiles {
  const GemmArgs& g;
  const TileBlock<T>& block;
  const Sum* c;
  GemmScratch& scratch;
  WeightsAhead& weights;
  int64_t lines, rows;  // lines to prefetch, and rows to finish, at each k tile
  Range ahead{0, 0};    // lines of a streamed block left to prefetch
  Range done{0, 0};     // rows left to finish

  void operator()() {
    if (block.streamed)
      fetch_streamed();
    else
      weights.fetch(lines);
    if (done.begin < done.end) finish(done.begin + rows < done.end ? done.begin + rows : done.end);
  }
  void fetch_streamed() {
    const auto* from = reinterpret_cast<const std::byte*>(block.tiles) + kStreamAhead;
    for (const int64_t end = ahead.begin + lines < ahead.end ? ahead.begin + lines : ahead.end; ahead.begin < end;
         ++ahead.begin)
      NUMASERVE_FETCH_LINE(from + ahead.begin * kLineBytes);
  }
  void finish(int64_t end) {
    finish_results<kSumsInRows>(g, c + done.begin * 32, block.row, done.begin, end - done.begin, block.panel, scratch);
    done.begin = end;
  }
};

// Adds a block to `c` [rows][32], and finishes the sums if the block is the last one.
template <class T, class Sum>
[[gnu::noinline]] inline void multiply_by_tiles(const GemmArgs& g, GemmScratch& scratch, const TileBlock<T>& block,
                                                Sum* c, bool accumulate, bool finish, WeightsAhead& weights) {
  if (finish) expand_late(g, block.row, block.rows, block.panel, scratch.expanded);
  const int64_t steps = ceil_div(block.rows, 2 * kTileRows);
  constexpr int64_t kTile = kTileBytes / static_cast<int64_t>(sizeof(T));
  const auto tile = [&block](int64_t t) { return block.tiles + t * 2 * kTile; };
  const int64_t rows_each = ceil_div(2 * kTileRows, block.count > 0 ? block.count : 1);
  BesideTiles<T, Sum> beside{g, block, c, scratch, weights, ceil_div(2 * kLines, steps), rows_each};
  for (int64_t r = 0, step = 0; r < block.rows; ++step) {
    const int rows = rows_at_once(block.rows - r);
    const auto a = tiles_of<T>(g, scratch, block.row, r, rows, block.first);
    beside.ahead = split(block.count * 2 * kLines, steps, step);
    beside.done.end = finish ? r : 0;
    multiply_row_tiles(a, tile, kTile, block.count, c + r * 32, 32, rows, accumulate, beside);
    r += rows;
  }
  if (finish) beside.finish(block.rows);  // the last rows, or all rows if a rank has no share of k
}

// Adds k tiles of a pair of panels to `c` [rows][32], or overwrites `c` with them if `fresh` is set, in blocks of
// `depth` tiles.
template <class T, class Sum>
inline void add_by_tiles(const GemmArgs& g, const TileBlock<T>& slab, int64_t depth, bool fresh, bool finish,
                         GemmScratch& scratch, Sum* c) {
  constexpr int64_t kPair = 2 * kTileBytes / static_cast<int64_t>(sizeof(T));
  const int64_t end = slab.first + slab.count;
  const std::byte* after = weights_after<T>(g, scratch.share, slab.row, slab.rows, slab.panel);
  WeightsAhead weights(reinterpret_cast<const std::byte*>(slab.tiles), after + slab.first * 2 * kTileBytes, slab.count,
                       depth);
  int64_t kt = slab.first;
  do {  // once even if k is empty, so that the results are zero
    TileBlock<T> block = slab;
    block.first = kt;
    block.count = end - kt < depth ? end - kt : depth;
    block.tiles += (kt - slab.first) * kPair;
    multiply_by_tiles(g, scratch, block, c, !fresh || kt > slab.first, finish && kt + block.count >= end, weights);
    kt += block.count;
  } while (kt < end);
}

}  // namespace
}  // namespace numaserve
