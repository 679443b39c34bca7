// Products with weights in groups of k that have their own scales. With many rows, the codes of a block of groups are
// widened once to tiles in the L1 cache, and all rows pass by these tiles. A group's part is scaled when its sum is
// finished: the sum within a group has the exact values of the codes, in int32 or fp32. Scaling the weights instead
// would round them to bf16 and cost four times the instructions per weight. nvfp4 pays these instructions: its scaled
// weights are exact, and its groups of 16 are half a tile of bf16.
#pragma once

#include "kernels/gemm/grouped/group_codes.inl"
#include "kernels/gemm/grouped/grouped_passes.inl"
#include "kernels/gemm/sums_in_rows.inl"
#include "kernels/gemm/tiles/tile.h"

#if defined(NUMASERVE_TILES_HEADER)
#include "kernels/gemm/grouped/grouped_amx.inl"
#include "kernels/gemm/grouped/scaled_amx.inl"
#include "kernels/gemm/streamed_lines_amx.inl"
#endif

namespace numaserve {
namespace {

#if !defined(NUMASERVE_TILES_HEADER)
// Adds groups [begin, end) of one pair of panels to `c` [rows][32].
template <class Codes>
inline void add_groups(const GemmArgs& g, int64_t row, int64_t rows, int64_t panel, Range groups, GemmScratch& scratch,
                       float* c) {
  const GroupLayout layout = group_layout(Codes::kFormat, g.b.group, g.b.offsets);
  const std::byte* records = pair_records(g.b, layout, panel);
  const int64_t panel_bytes = widened_panel_bytes<Codes>(g.b.group);
  const int64_t block = kWidenedBytes / (2 * panel_bytes);
  for (int64_t first = groups.begin; first < groups.end; first += block) {
    const int64_t count = groups.end - first < block ? groups.end - first : block;
    for (int64_t i = 0; i < 2 * count; ++i) {
      const std::byte* record = records + (first + i / 2) * layout.bytes;
      widen_panel<Codes>(layout, record, static_cast<int>(i % 2), scratch.tiles + i * panel_bytes);
    }
    multiply_scaled<Codes>(g, layout, row, rows, panel, {first, first + count}, scratch, c);
  }
}
#endif

#if defined(NUMASERVE_TILES_HEADER)
// Results may be written past the caches.
struct GroupedSums : SumsInRows<float> {
  static void begin_share(const GemmArgs& g, const GemmShare& share, GemmScratch& scratch) {
    scratch.streamed.panels = streamed_panels(g, share);
  }
  static void end_share(const GemmScratch& scratch) { fence_streams(scratch.streamed); }
  static void finish(const GemmArgs& g, int64_t row, int64_t rows, int64_t panel, const float* c,
                     GemmScratch& scratch) {
    if (g.expand.adapters != nullptr) tile_begin(rows);  // products by vectors have not configured them
    expand_late(g, row, rows, panel, scratch.expanded);
    finish_results<kSumsInRows>(g, c, row, 0, rows, panel, scratch);
  }
};
#else
using GroupedSums = SumsInRows<float>;
#endif

// The loop nest's view of a grouped format: its unit of k is a group.
template <class Codes>
struct Grouped : GroupedSums {
  using T = typename Codes::Element;
  using Sum = float;
  static constexpr bool kFinishes = false;
  static constexpr int64_t kBytes = sizeof(T);
  static int64_t unit(const PackedWeights& b) { return b.group; }
  static int64_t slab(const GemmArgs& g, int64_t rows, bool streamed) {
    const int64_t wanted = streamed ? kMostTotals / kStreamedRows : g.blocking.slab_tiles * kTileDepth<T> / g.b.group;
    const int64_t bytes = kPacksTiles ? packed_tiles_room(rows) * kLineBytes : packed_room(rows) / kPerWord<Codes>;
    const int64_t room = bytes / group_bytes(g, rows);
    return room < wanted ? room : wanted;
  }
  static void begin(const GemmArgs& g, int64_t row, int64_t rows, Range groups, GemmScratch& scratch) {
    if constexpr (!kWholeNumbers<Codes>) sum_groups(g, row, rows, groups, scratch);
#if defined(NUMASERVE_TILES_HEADER)
    if (!packs(g, rows)) return pack_groups<Codes>(g, row, rows, groups, scratch);
#endif
    if constexpr (kPacksRows || kRowsInRegisters<T> > 0) {
      const int64_t end = groups.end * g.b.group < g.b.depth ? groups.end * g.b.group : g.b.depth;
      const T* a = static_cast<const T*>(g.a) + row * g.lda;
      const Range words{groups.begin * g.b.group / kLineDepth<T>, end / kLineDepth<T>};
      pack_rows<Codes>(a, g.lda * kBytes, rows, words, most_together<Codes>(g, rows), scratch);
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
  // Whether activations are packed row by row rather than tile by tile.
  static bool packs(const GemmArgs& g, int64_t rows) {
    return rows <= (kPacksRows ? kRowBlock : rows_in_registers<T>(g.b.group, g.b.offsets));
  }
  // Returns the bytes of a group's packed activations, for one row.
  static int64_t group_bytes(const GemmArgs& g, [[maybe_unused]] int64_t rows) {
#if defined(NUMASERVE_TILES_HEADER)
    if (!packs(g, rows)) return tiles_of_group<Codes>(g.b.group) * kLineBytes;
#endif
    return g.b.group * kBytes;
  }

  static void add_few_or_many(const GemmArgs& g, int64_t row, int64_t rows, int64_t panel, Range groups,
                              GemmScratch& scratch, float* c) {
    if constexpr (kRowsInRegisters<T> > 0) {
      // The padding of bf16 activations may cut a group short: its lines of codes would then extend beyond the
      // activations.
      if (rows <= rows_in_registers<T>(g.b.group, g.b.offsets) && groups.end * g.b.group <= g.b.depth)
        return add_groups_in_registers<Codes>(g, row, rows, panel, groups, scratch, c);
    }
#if defined(NUMASERVE_TILES_HEADER)
    add_by_pipe<Codes>(g, rows, panel, groups, scratch, c);
#else
    add_groups<Codes>(g, row, rows, panel, groups, scratch, c);
#endif
  }
};

// Formats whose scaled values bf16 holds exactly.
//
// A group of mxfp4 is a k tile and its scale a power of two, so sums of groups that are scaled have the same bits, as
// long as no part of a sum is below 2^-126. They take fewer instructions with few rows. Measured with AMX, weights in
// the third level, time of scaled values over that of sums of groups: 1.24 with one row, 0.98 with 8 rows, 0.85 with
// 16, 0.64 with 32.
#if defined(NUMASERVE_TILES_HEADER)
template <class Codes>
using WithScales = Scaled<Codes>;
inline bool sums_groups(int64_t rows) { return rows <= 12; }
#else
template <class Codes>
using WithScales = Grouped<Codes>;
inline bool sums_groups(int64_t) { return true; }
#endif

}  // namespace
}  // namespace numaserve
