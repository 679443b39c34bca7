// Products of many rows with tile registers: activations are copied tile by tile, in the order in which the products
// read them, and the sums are stored as tiles. Activations that were written in the order of tiles (`tiled_index`) are
// read in place, however few rows of them a thread has.
//
// While rows pass by a block of weights, the first level holds the weights, the sums of the present rows and the next
// ones, and results. Activations are read from the second level with TILELOADDT1, which leaves the first one alone: a
// block of weights may then be larger. From one row tile pair to the next, sums are stored and loaded one by one, each
// just before the first product that needs its register, so that products go on meanwhile. Measured with AMX in a
// prototype, gate and up of Llama-1B, 512 rows: 1.77 instead of 1.74 with sums one by one, and 1.90 TFLOP/s with
// TILELOADDT1 and blocks of 13 k tiles together, each of which gains nothing alone.
#pragma once

#include <immintrin.h>

#include <type_traits>

#if !defined(NUMASERVE_TILE_HEADER)  // read by itself
#define NUMASERVE_TILE_HEADER "kernels/gemm/tiles/tile_amx.h"
#endif
#include "kernels/gemm/epilogue.inl"
#include "kernels/gemm/first_steps_amx.inl"
#include "kernels/gemm/late_sums_amx.inl"
#include "kernels/gemm/lines_ahead_amx.inl"
#include "kernels/gemm/scratch.inl"
#include "kernels/gemm/streamed_lines_amx.inl"
#include "kernels/gemm/sums_in_rows.inl"
#include "kernels/gemm/tiles/tile.h"
#include "kernels/gemm/weights_ahead_amx.inl"
#include "kernels/include/kernel_table.h"
#include "kernels/simd/prefetch.h"

namespace numaserve {
namespace {

inline constexpr int64_t kSumsOfRows = kRowTileRows * 32;           // of two panels, in the layout `kSumsInTiles`
inline constexpr int64_t kSumLines = kSumsOfRows * 4 / kLineBytes;  // the same in lines

// Whether the activations of a share are copied by blocks. Fewer rows pass by weights too quickly for the copies to
// pay, and with few pairs of panels too few products use a copy.
inline bool copies_blocks(const GemmArgs& g, const GemmShare& share) {
  const int64_t rows = share.rows.end - share.rows.begin, pairs = (share.panels.end - share.panels.begin) / 2;
  return g.tiled_rows || (rows > kStreamedRows && rows > g.blocking.few_rows && pairs >= g.blocking.least_copied_pairs);
}

// The blocks of a range of k tiles, all nearly equal. They have the tiles of the blocking, or up to a fourth more:
// slabs of 16 and 32 tiles are one and two blocks, whose sums are stored less often.
struct CopiedBlocks {
  Range k;
  int64_t count;
  CopiedBlocks(Range tiles, int64_t wanted) : k(tiles) {
    const int64_t all = tiles.end - tiles.begin;
    const int64_t nearest = (all + wanted / 2) / wanted, least = ceil_div(all, wanted * 5 / 4);
    count = nearest > least ? nearest : least;
  }
  Range at(int64_t index) const {
    const Range block = split(k.end - k.begin, count, index);
    return {k.begin + block.begin, k.begin + block.end};
  }
};

inline int64_t row_tiles_at(int64_t rows, int64_t r) { return rows - r > kTileRows ? 2 : 1; }

// The tiles of rows from row `r` of a row block on, for a block of k: [k tiles][2][16][64 bytes]. The groups of 32 rows
// of a block follow each other where tiles are copied; otherwise each has all of k.
inline std::byte* copied_tiles(GemmScratch& scratch, int64_t rows, Range block, int64_t r) {
  const int64_t before = block.begin - scratch.first_word / kLines, groups = ceil_div(rows, kRowTileRows);
  return scratch.rows + (before * groups + (block.end - block.begin) * (r / kRowTileRows)) * 2 * kTileBytes;
}
template <class T>
inline const T* tiles_at(const GemmArgs& g, GemmScratch& scratch, int64_t row, int64_t rows, Range block, int64_t r) {
  if (!g.tiled_rows) return reinterpret_cast<const T*>(copied_tiles(scratch, rows, block, r));
  return static_cast<const T*>(g.a) + tiled_index<T>(row + r, block.begin * kTileDepth<T>, g.lda);
}

// Copies the activations of a block. Rows that do not exist are zero.
inline void copy_block(const std::byte* from, int64_t row_bytes, int64_t rows, Range block, GemmScratch& scratch) {
  for (int64_t r = 0; r < rows; r += kRowTileRows) {
    std::byte* to = copied_tiles(scratch, rows, block, r);
    for (int64_t i = 0; i < row_tiles_at(rows, r) * kTileRows; ++i) {
      std::byte* line = to + i * kLineBytes;  // the second tile follows the first one
      const std::byte* row = from + (r + i) * row_bytes + block.begin * kLineBytes;
      for (int64_t tile = 0; tile < block.end - block.begin; ++tile, line += 2 * kTileBytes) {
        if (r + i < rows)
          NUMASERVE_COPY_LINE(line, row + tile * kLineBytes);
        else
          __builtin_memset(line, 0, kLineBytes);
      }
    }
  }
}

// Copies k tiles of a row block to `scratch.rows`, part by part of k, since a block lies in one part.
template <class T>
inline void copy_blocks(const GemmArgs& g, int64_t row, int64_t rows, Range k, int64_t wanted, GemmScratch& scratch) {
  if (g.tiled_rows) return;
  scratch.first_word = k.begin * kLines;
  const int64_t row_bytes = g.lda * static_cast<int64_t>(sizeof(T)), units = g.b.depth / kTileDepth<T>;
  const auto* from = static_cast<const std::byte*>(g.a) + row * row_bytes;
  for (int64_t index = 0; index < g.b.k_parts; ++index) {
    const Range part = split(units, g.b.k_parts, index);
    const Range some{part.begin > k.begin ? part.begin : k.begin, part.end < k.end ? part.end : k.end};
    const CopiedBlocks blocks(some, wanted);
    for (int64_t i = 0; i < blocks.count; ++i) copy_block(from, row_bytes, rows, blocks.at(i), scratch);
  }
}

// The next block of weights, of which some lines are prefetched at each k tile.
struct FetchedWeights {
  LinesAhead lines;
  int64_t each;
  void step() { lines.fetch(each); }
};
// The number of such steps while rows pass by a block of k tiles.
inline int64_t steps_of_block(int64_t rows, int64_t tiles) { return ceil_div(rows, kRowTileRows) * (tiles - 1) + 1; }

// Vector work during the products of a block: preparing the next weights, prefetching sums, and finishing sums.
template <class Sum, class Ahead>
struct BesideCopied {
  const GemmArgs& g;
  GemmScratch& scratch;
  Ahead& ahead;
  const Sum* sums = nullptr;  // that the next rows or the next block add to
  Range sum_lines{0, 0};
  int64_t sum_lines_each;
  int64_t rows_each;  // of the previous pair of panels, to finish

  void fetch_sums() {
    const int64_t end = next(sum_lines, sum_lines_each);
    for (; sum_lines.begin < end; ++sum_lines.begin)
      prefetch_written(reinterpret_cast<const std::byte*>(sums) + sum_lines.begin * kLineBytes);
  }
  static int64_t next(Range left, int64_t count) {
    return left.begin + count < left.end ? left.begin + count : left.end;
  }
};

// The first k tile of some rows, whose sums take the registers of `before`, the sums of 32 rows.
template <int kRowTiles, class T, class Sum>
inline void switch_sums(const T* a, const T* b, Sum* before, const Sum* c, bool fresh) {
  constexpr int64_t kTile = kTileBytes / static_cast<int64_t>(sizeof(T));
  NUMASERVE_TILE_LOAD(6, b, 64);
  NUMASERVE_TILE_LOAD_PAST_FIRST(4, a, 64);
  NUMASERVE_SUM_STORE(0, 0, before);
  NUMASERVE_SUM_LOAD(0, 0, c, fresh);
  NUMASERVE_TILE_DOT(T, 0, 4, 6);
  if constexpr (kRowTiles == 2) NUMASERVE_TILE_LOAD_PAST_FIRST(5, a + kTile, 64);
  NUMASERVE_SUM_STORE(2, 1, before);
  if constexpr (kRowTiles == 2) {
    NUMASERVE_SUM_LOAD(2, 1, c, fresh);
    NUMASERVE_TILE_DOT(T, 2, 5, 6);
  }
  NUMASERVE_TILE_LOAD(7, b + kTile, 64);
  NUMASERVE_SUM_STORE(1, 2, before);
  NUMASERVE_SUM_LOAD(1, 2, c, fresh);
  NUMASERVE_TILE_DOT(T, 1, 4, 7);
  NUMASERVE_SUM_STORE(3, 3, before);
  if constexpr (kRowTiles == 2) {
    NUMASERVE_SUM_LOAD(3, 3, c, fresh);
    NUMASERVE_TILE_DOT(T, 3, 5, 7);
  }
}

// Multiplies the copied rows `a` by a block of at least one k tile. `before` are the sums in the registers, null for
// the block's first rows. `added`, if not null, is what the sums of row `r` on begin with.
template <int kRowTiles, class T, class Sum, class Beside>
inline void multiply_copied_rows(const T* a, const T* b, int64_t k_tiles, Sum* before, const Sum* c, bool fresh,
                                 const FirstSteps* added, int64_t r, Beside& beside) {
  constexpr int64_t kTile = kTileBytes / static_cast<int64_t>(sizeof(T));
  __asm__ volatile("" ::: "memory");  // see amx_block
  int64_t kt = 0;
  if (added != nullptr) {
    begin_with_steps<kRowTiles>(*added, r, before);
  } else if (before != nullptr) {
    switch_sums<kRowTiles>(a, b, before, c, fresh);
    kt = 1;
  } else {
    NUMASERVE_SUM_LOAD(0, 0, c, fresh);
    NUMASERVE_SUM_LOAD(1, 2, c, fresh);
    if constexpr (kRowTiles == 2) NUMASERVE_SUM_LOAD(2, 1, c, fresh);
    if constexpr (kRowTiles == 2) NUMASERVE_SUM_LOAD(3, 3, c, fresh);
  }
  for (; kt < k_tiles; ++kt) {
    const T *weights = b + kt * 2 * kTile, *rows = a + kt * 2 * kTile;
    NUMASERVE_TILE_LOAD(6, weights, 64);
    NUMASERVE_TILE_LOAD(7, weights + kTile, 64);
    NUMASERVE_TILE_LOAD_PAST_FIRST(4, rows, 64);
    if constexpr (kRowTiles == 2) NUMASERVE_TILE_LOAD_PAST_FIRST(5, rows + kTile, 64);
    NUMASERVE_TILE_DOT(T, 0, 4, 6);
    beside.ahead.step();
    if constexpr (kRowTiles == 2) NUMASERVE_TILE_DOT(T, 2, 5, 6);
    beside.fetch_sums();
    NUMASERVE_TILE_DOT(T, 1, 4, 7);
    finish_late<Sum>(beside.g, beside.scratch, beside.rows_each);
    if constexpr (kRowTiles == 2) NUMASERVE_TILE_DOT(T, 3, 5, 7);
  }
}

template <class Sum>
inline void store_sums(int64_t row_tiles, Sum* c) {
  NUMASERVE_SUM_STORE(0, 0, c);
  NUMASERVE_SUM_STORE(1, 2, c);
  if (row_tiles < 2) return;
  NUMASERVE_SUM_STORE(2, 1, c);
  NUMASERVE_SUM_STORE(3, 3, c);
}

// A block of weights.
template <class T>
struct CopiedBlock {
  Range k;
  const T* weights;
  bool fresh;
  int64_t late_each;  // rows of the previous pair to finish at each k tile
  const FirstSteps* added = nullptr;
};

// Adds a block of weights to the sums `c` of a row block.
template <class T, class Sum, class Ahead>
[[gnu::noinline]] inline void multiply_copied(const GemmArgs& g, GemmScratch& scratch, int64_t row, int64_t rows,
                                              const CopiedBlock<T>& block, Ahead& ahead, Sum* c) {
  const int64_t tiles = block.k.end - block.k.begin, passes = ceil_div(rows, kRowTileRows);
  BesideCopied<Sum, Ahead> beside{.g = g,
                                  .scratch = scratch,
                                  .ahead = ahead,
                                  .sum_lines_each = ceil_div(kSumLines, tiles > 1 ? tiles - 1 : 1),
                                  .rows_each = block.late_each};
  Sum* before = nullptr;
  for (int64_t r = 0; r < rows; r += kRowTileRows) {
    Sum* sums = c + r * 32;
    beside.sums = r + kRowTileRows < rows ? sums + kSumsOfRows : c;  // of the next block
    beside.sum_lines = {0, kSumLines};
    const T* a = tiles_at<T>(g, scratch, row, rows, block.k, r);
    if (row_tiles_at(rows, r) == 2)
      multiply_copied_rows<2>(a, block.weights, tiles, before, sums, block.fresh, block.added, r, beside);
    else
      multiply_copied_rows<1>(a, block.weights, tiles, before, sums, block.fresh, block.added, r, beside);
    before = sums;
  }
  store_sums(row_tiles_at(rows, (passes - 1) * kRowTileRows), before);
}

// The sums of formats without groups: of many rows as tiles.
template <class Sum>
struct SumsOfCopied : SumsInRows<Sum> {
  static void begin_share(const GemmArgs& g, const GemmShare& share, GemmScratch& scratch) {
    scratch.share = share;
    scratch.copies = copies_blocks(g, share);
    scratch.streamed.panels = streamed_panels(g, share);
    scratch.late = {};
  }
  static void end_rows(const GemmArgs& g, GemmScratch& scratch) { finish_all_late<Sum>(g, scratch); }
  static void end_share(const GemmScratch& scratch) { fence_streams(scratch.streamed); }
  static void add_part(int64_t rows, const Sum* part, Sum* c, const GemmScratch& scratch) {
    if (!scratch.copies) return SumsInRows<Sum>::add_part(rows, part, c, scratch);
    for (int64_t r = 0; r < rows; r += kRowTileRows, part += kSumsOfRows, c += kSumsOfRows) {
      const int64_t count = row_tiles_at(rows, r) * kTileSums;
      constexpr int64_t kHalves[] = {0, kSumsInTiles.half};
      for (const int64_t half : kHalves) add_values(part + half, count, c + half);
    }
  }
  static void finish(const GemmArgs& g, int64_t row, int64_t rows, int64_t panel, const Sum* c, GemmScratch& scratch) {
    expand_late(g, row, rows, panel, scratch.expanded);
    if (!scratch.copies) return finish_results<kSumsInRows>(g, c, row, 0, rows, panel, scratch);
    for (int64_t r = 0; r < rows; r += kRowTileRows, c += kSumsOfRows) {
      const int64_t count = rows - r < kRowTileRows ? rows - r : kRowTileRows;
      finish_results<kSumsInTiles>(g, c, row, r, count, panel, scratch);
    }
  }
};

// Returns the rows of the previous pair to finish at each k tile of some blocks.
template <class Sum>
inline int64_t begin_late(const GemmArgs& g, int64_t rows, const CopiedBlocks& blocks, GemmScratch& scratch,
                          const Sum* c) {
  const LateSums& late = scratch.late;
  if (late.sums == c) finish_all_late<Sum>(g, scratch);  // of a group of one pair
  const int64_t steps = ceil_div(rows, kRowTileRows) * (blocks.k.end - blocks.k.begin - blocks.count);
  return ceil_div(late.rows.end - late.rows.begin, steps > 0 ? steps : 1);
}
// After these blocks: the sums `c` are finished later if `finish` is set.
template <class Sum>
inline void end_late(const GemmArgs& g, int64_t row, int64_t rows, int64_t panel, bool finish, GemmScratch& scratch,
                     const Sum* c) {
  finish_all_late<Sum>(g, scratch);
  if (!finish) return;
  expand_late(g, row, rows, panel, scratch.expanded);
  scratch.late = {c, row, panel, {0, rows}};
}

// Adds k tiles of a pair of panels to the sums `c` of a row block, or overwrites `c` with them if `fresh` is set. With
// `finish`, the sums are finished later: during the products of the next pair, or by `end_rows`.
template <class T, class Sum>
inline void add_copied(const GemmArgs& g, int64_t row, int64_t rows, int64_t panel, Range k, bool fresh, bool finish,
                       GemmScratch& scratch, Sum* c) {
  constexpr int64_t kPair = 2 * kTileBytes / static_cast<int64_t>(sizeof(T));
  if (k.begin == k.end) {  // of a rank that has no share of k
    __builtin_memset(c, 0, static_cast<size_t>(round_up(rows, kRowTileRows)) * 32 * sizeof(Sum));
    if (finish) SumsOfCopied<Sum>::finish(g, row, rows, panel, c, scratch);
    return;
  }
  const int64_t k_tiles = g.b.depth / kTileDepth<T>;
  const T* b = reinterpret_cast<const T*>(g.b.data) + panel / 2 * k_tiles * kPair;
  const T* after = reinterpret_cast<const T*>(weights_after<T>(g, scratch.share, row, rows, panel));
  const CopiedBlocks blocks(k, g.blocking.copied_tiles);
  const int64_t late_each = begin_late(g, rows, blocks, scratch, c);
  const FirstSteps* added = nullptr;
  if constexpr (std::is_same_v<Sum, float>)
    if (fresh && k.begin == 0 && begins_expanded(g)) {
      if (make_first_steps(g.expand, row, rows, panel, scratch.added))
        added = &scratch.added;
      else
        begin_copied_sums(g.expand, row, rows, panel, scratch.expanded, c), fresh = false;
    }
  for (int64_t i = 0; i < blocks.count; ++i) {
    const bool last = i + 1 == blocks.count;
    const Range own = blocks.at(i), next = blocks.at(last ? 0 : i + 1);
    const auto* from = reinterpret_cast<const std::byte*>((last ? after : b) + next.begin * kPair);
    const int64_t tiles = next.end - next.begin;
    FetchedWeights ahead{.lines = {from, tiles * 2 * kTileBytes},
                         .each = ceil_div(tiles * 2 * kLines, steps_of_block(rows, own.end - own.begin))};
    const CopiedBlock<T> block{own, b + own.begin * kPair, fresh && i == 0, late_each, i == 0 ? added : nullptr};
    multiply_copied(g, scratch, row, rows, block, ahead, c);
  }
  end_late(g, row, rows, panel, finish, scratch, c);
}

}  // namespace
}  // namespace numaserve
