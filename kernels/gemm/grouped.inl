// Products with weights in groups of k that have scales of their own. The codes of a block of groups are widened once
// to tiles in the L1 cache, all rows pass by these, and what a group adds is scaled when its sum is finished: the sum
// inside a group has the exact values of the codes, in int32 or, of e4m3, fp32. Scaling the weights instead would round
// them to bf16 and cost four times the instructions a weight.
#pragma once

#include "kernels/gemm/group_codes.inl"
#include "kernels/gemm/tile.h"

#if defined(__AVX512VNNI__)
#include "kernels/gemm/grouped_avx512.inl"
#endif

namespace numaserve {
namespace {

// Adds groups [begin, end) of one pair of panels to `c` [rows][32]. `kUsed`: the lines of a tile that a group fills,
// all of them or, in int8 groups of 32, half.
template <class Codes, int kUsed>
inline void add_groups(const GemmArgs& g, int64_t row, int64_t rows, int64_t panel, Range groups, GemmScratch& scratch,
                       float* c) {
  using T = typename Codes::Element;
  constexpr int64_t kDepth = kUsed * kLineDepth<T>, kTileBytesHere = (kWholeTiles ? kLines : kUsed) * kLineBytes;
  const GroupLayout layout = group_layout(Codes::kFormat, g.b.group, g.b.offsets);
  const std::byte* records = pair_records(g.b, layout, panel);
  const int64_t panel_bytes = g.b.group / kDepth * kTileBytesHere;
  const int64_t block = kWidenedBytes / (2 * panel_bytes);
  const T* tiles = reinterpret_cast<const T*>(scratch.tiles);
  for (int64_t first = groups.begin; first < groups.end; first += block) {
    const int64_t count = groups.end - first < block ? groups.end - first : block;
    for (int64_t i = 0; i < 2 * count; ++i) {
      const std::byte* codes = records + (first + i / 2) * layout.bytes + i % 2 * kLineBytes;
      std::byte* out = scratch.tiles + i * panel_bytes;
      for (int64_t line = 0; line < layout.lines; ++line)
        Codes::widen(codes + line * 2 * kLineBytes, out + line * Codes::kLinesPerCode * kLineBytes);
      if constexpr (kTileBytesHere != kUsed * kLineBytes)
        __builtin_memset(out + kUsed * kLineBytes, 0, static_cast<size_t>(kTileBytesHere - kUsed * kLineBytes));
    }
    if constexpr (kPacksRows && !kWholeNumbers<Codes>) {
      multiply_scaled<Codes>(g, layout, row, rows, panel, {first, first + count}, scratch, c);
      continue;
    }
    for (int64_t r = 0; r < rows; r += 32) {
      const int tile_rows = static_cast<int>(rows - r < 32 ? rows - r : 32);
      for (int64_t i = 0; i < count; ++i) {
        const int64_t k = (first + i) * g.b.group;
        const T* a = static_cast<const T*>(g.a) + (row + r) * g.lda + k;
        const int64_t left = g.b.depth - k < g.b.group ? g.b.depth - k : g.b.group;
        const T* group_tiles = tiles + 2 * i * panel_bytes / static_cast<int64_t>(sizeof(T));
        const auto tile = [group_tiles](int64_t kt) {
          return group_tiles + kt * (kTileBytesHere / static_cast<int64_t>(sizeof(T)));
        };
        auto* sums = reinterpret_cast<typename SumOf<T>::type*>(scratch.sums);
        tile_gemm<false, kUsed>(a, g.lda, tile, panel_bytes / static_cast<int64_t>(sizeof(T)), 2, left / kDepth, sums,
                                32, tile_rows, false);
        add_scaled<Codes>(g, layout, records + (first + i) * layout.bytes, first + i, row, r, tile_rows, sums, scratch,
                          c);
      }
    }
  }
}

// The loop nest's view of a grouped format: its unit of k is a group.
template <class Codes>
struct Grouped {
  using T = typename Codes::Element;
  using Sum = float;
  static constexpr int64_t kBytes = sizeof(T);
  static int64_t unit(const PackedWeights& b) { return b.group; }
  static int64_t slab(const GemmArgs& g, int64_t rows, bool streamed) {
    const int64_t wanted = streamed ? kMostTotals / kStreamedRows : g.blocking.slab_tiles * kTileDepth<T> / g.b.group;
    const int64_t room = packed_room(rows) / (g.b.group * kBytes);
    return packs(rows) && room < wanted ? room : wanted;
  }
  static void begin(const GemmArgs& g, int64_t row, int64_t rows, Range groups, GemmScratch& scratch) {
    if constexpr (!kWholeNumbers<Codes>) sum_groups(g, row, rows, groups, scratch);
    if constexpr (kMostPacked > 0) {
      if (!packs(rows)) return;
      const int64_t end = groups.end * g.b.group < g.b.depth ? groups.end * g.b.group : g.b.depth;
      const T* a = static_cast<const T*>(g.a) + row * g.lda;
      const Range words{groups.begin * g.b.group / kLineDepth<T>, end / kLineDepth<T>};
      pack_rows(a, g.lda * kBytes, rows, words, most_together<Codes>(g), scratch);
    }
  }
  static void add(const GemmArgs& g, int64_t row, int64_t rows, int64_t panel, Range groups, bool fresh, bool,
                  GemmScratch& scratch, float* c) {
    constexpr int kHalf = kWholeNumbers<Codes> ? kLines / 2 : kLines;
    if (fresh) __builtin_memset(c, 0, static_cast<size_t>(rows) * 32 * sizeof(float));
    if constexpr (kRowsInRegisters<T> > 0) {
      // A group may be cut short by the padding of bf16 activations: lines of codes would then reach past them.
      if (rows <= kRowsInRegisters<T> && groups.end * g.b.group <= g.b.depth)
        return add_groups_in_registers<Codes>(g, row, rows, panel, groups, scratch, c);
    }
    if (kHalf != kLines && g.b.group < kTileDepth<int8_t>)
      add_groups<Codes, kHalf>(g, row, rows, panel, groups, scratch, c);
    else
      add_groups<Codes, kLines>(g, row, rows, panel, groups, scratch, c);
  }

 private:
  static constexpr int64_t kMostPacked = kPacksRows ? kRowBlock : kRowsInRegisters<T>;
  static bool packs(int64_t rows) { return rows <= kMostPacked; }
};

}  // namespace
}  // namespace numaserve
