// Products with weights in groups of k that have scales of their own. The codes of a block of groups are widened once
// to tiles in the L1 cache, all rows pass by these, and what a group adds is scaled when its sum is finished: the sum
// inside a group has the exact values of the codes, in int32 or, of e4m3, fp32. Scaling the weights instead would round
// them to bf16 and cost four times the instructions a weight.
#pragma once

#include "kernels/gemm/group_codes.inl"
#include "kernels/gemm/grouped_passes.inl"
#include "kernels/gemm/tile.h"

#if defined(NUMASERVE_TILES_HEADER)
#include "kernels/gemm/grouped_amx.inl"
#endif

namespace numaserve {
namespace {

// Adds groups whose codes are in tiles, one after the other for each panel, to `c` [rows][32]; see add_groups.
template <class Codes, int kUsed>
inline void multiply_tiles(const GemmArgs& g, const GroupLayout& layout, int64_t row, int64_t rows, int64_t panel,
                           Range groups, GemmScratch& scratch, float* c) {
  using T = typename Codes::Element;
  constexpr int64_t kDepth = kUsed * kLineDepth<T>, kTile = kUsed * kLineBytes / static_cast<int64_t>(sizeof(T));
  const int64_t panel_tiles = g.b.group / kDepth * kTile;
  const std::byte* records = pair_records(g.b, layout, panel);
  for (int64_t r = 0; r < rows;) {
    const int tile_rows = rows_at_once(rows - r);
    const T* tiles = reinterpret_cast<const T*>(scratch.tiles);
    for (int64_t group = groups.begin; group < groups.end; ++group, tiles += 2 * panel_tiles) {
      const int64_t k = group * g.b.group;
      const T* a = static_cast<const T*>(g.a) + (row + r) * g.lda + k;
      const int64_t left = g.b.depth - k < g.b.group ? g.b.depth - k : g.b.group;
      auto* sums = reinterpret_cast<typename SumOf<T>::type*>(scratch.sums);
      tile_gemm<kUsed>(
          a, g.lda, [tiles](int64_t kt) { return tiles + kt * kTile; }, panel_tiles, 2, left / kDepth, sums, 32,
          tile_rows, false);
      add_scaled<Codes>(g, layout, records + group * layout.bytes, group, row, r, tile_rows, sums, scratch, c);
    }
    r += tile_rows;
  }
}

// Adds groups [begin, end) of one pair of panels to `c` [rows][32]. `kUsed`: the lines of a tile that a group fills,
// all of them or, in int8 groups of 32, half.
template <class Codes, int kUsed>
inline void add_groups(const GemmArgs& g, int64_t row, int64_t rows, int64_t panel, Range groups, GemmScratch& scratch,
                       float* c) {
#if defined(NUMASERVE_TILES_HEADER)
  groups.begin += add_batches<Codes, kUsed>(g, row, rows, panel, groups, scratch, c);
#endif
  const GroupLayout layout = group_layout(Codes::kFormat, g.b.group, g.b.offsets);
  const std::byte* records = pair_records(g.b, layout, panel);
  const int64_t panel_bytes = widened_panel_bytes<Codes, kUsed>(g.b.group);
  const int64_t block = kWidenedBytes / (2 * panel_bytes);
  for (int64_t first = groups.begin; first < groups.end; first += block) {
    const int64_t count = groups.end - first < block ? groups.end - first : block;
    for (int64_t i = 0; i < 2 * count; ++i) {
      const std::byte* codes = records + (first + i / 2) * layout.bytes + i % 2 * kLineBytes;
      widen_panel<Codes, kUsed>(codes, layout.lines, scratch.tiles + i * panel_bytes);
    }
    const Range some{first, first + count};
    if constexpr (kPacksRows)
      multiply_scaled<Codes>(g, layout, row, rows, panel, some, scratch, c);
    else
      multiply_tiles<Codes, kUsed>(g, layout, row, rows, panel, some, scratch, c);
  }
}

// The loop nest's view of a grouped format: its unit of k is a group.
template <class Codes>
struct Grouped {
  using T = typename Codes::Element;
  using Sum = float;
  static constexpr bool kFinishes = false;
  static constexpr int64_t kBytes = sizeof(T);
  static int64_t unit(const PackedWeights& b) { return b.group; }
  static int64_t slab(const GemmArgs& g, int64_t rows, bool streamed) {
    const int64_t wanted = streamed ? kMostTotals / kStreamedRows : g.blocking.slab_tiles * kTileDepth<T> / g.b.group;
    const int64_t room = (kPacksTiles ? packed_tiles_room(rows) * kLineBytes : packed_room(rows) / kPerWord<Codes>) /
                         (g.b.group * kBytes);
    return (packs(g, rows) || kPacksTiles) && room < wanted ? room : wanted;
  }
  static void begin(const GemmArgs& g, int64_t row, int64_t rows, Range groups, GemmScratch& scratch) {
    if constexpr (!kWholeNumbers<Codes>) sum_groups(g, row, rows, groups, scratch);
    if (!packs(g, rows)) {
      tile_begin(rows, lines_of(g));
#if defined(NUMASERVE_TILES_HEADER)
      if (lines_of(g) < kLines) return pack_units<T, kHalf>(g, row, rows, groups, scratch);
      return pack_units<T, kLines>(g, row, rows, groups, scratch);
#endif
      return;
    }
    if constexpr (kPacksRows || kRowsInRegisters<T> > 0) {
      const int64_t end = groups.end * g.b.group < g.b.depth ? groups.end * g.b.group : g.b.depth;
      const T* a = static_cast<const T*>(g.a) + row * g.lda;
      const Range words{groups.begin * g.b.group / kLineDepth<T>, end / kLineDepth<T>};
      pack_rows<Codes>(a, g.lda * kBytes, rows, words, most_together<Codes>(g), scratch);
    }
  }
  static void add(const GemmArgs& g, int64_t row, int64_t rows, int64_t panel, Range groups, bool fresh, bool, bool,
                  GemmScratch& scratch, float* c) {
    if (fresh) __builtin_memset(c, 0, static_cast<size_t>(rows) * 32 * sizeof(float));
    if constexpr (kWholeNumbers<Codes> && kRowsInRegisters<T> >= kRowBlock)
      add_groups_in_registers<Codes>(g, row, rows, panel, groups, scratch, c);
    else
      add_few_or_many(g, row, rows, panel, groups, scratch, c);
  }

 private:
  static bool packs(const GemmArgs& g, int64_t rows) {
    return rows <= (kPacksRows ? kRowBlock : rows_in_registers<T>(g.b.group));
  }

  // Those of a tile, of which a group of 32 in int8 has half.
  static constexpr int kHalf = kWholeNumbers<Codes> ? kLines / 2 : kLines;
  static int lines_of(const GemmArgs& g) { return g.b.group < kTileDepth<T> ? kHalf : kLines; }

  static void add_few_or_many(const GemmArgs& g, int64_t row, int64_t rows, int64_t panel, Range groups,
                              GemmScratch& scratch, float* c) {
    if constexpr (kRowsInRegisters<T> > 0) {
      // A group may be cut short by the padding of bf16 activations: lines of codes would then reach past them.
      if (rows <= rows_in_registers<T>(g.b.group) && groups.end * g.b.group <= g.b.depth)
        return add_groups_in_registers<Codes>(g, row, rows, panel, groups, scratch, c);
    }
    if (lines_of(g) < kLines)
      add_groups<Codes, kHalf>(g, row, rows, panel, groups, scratch, c);
    else
      add_groups<Codes, kLines>(g, row, rows, panel, groups, scratch, c);
  }
};

}  // namespace
}  // namespace numaserve
