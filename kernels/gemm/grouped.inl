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

#if !defined(__AVX512VNNI__)
template <class>
inline bool add_groups_in_registers(const GemmArgs&, int64_t, int64_t, int64_t, Range, bool, const GemmScratch&,
                                    float*) {
  return false;
}
#endif

// Adds groups [begin, end) of one pair of panels to `c` [rows][32], or begins with them where that is `fresh`. `kUsed`:
// the lines of a tile that a group fills, all of them or, in int8 groups of 32, half.
template <class Codes, int kUsed>
inline void add_groups(const GemmArgs& g, int64_t row, int64_t rows, int64_t panel, Range groups, bool fresh,
                       GemmScratch& scratch, float* c) {
  using T = typename Codes::Element;
  constexpr int64_t kDepth = kUsed * kLineDepth<T>, kTileBytesHere = (kWholeTiles ? kLines : kUsed) * kLineBytes;
  const GroupLayout layout = group_layout(Codes::kFormat, g.b.group, g.b.offsets);
  const std::byte* records = pair_records(g.b, layout, panel);
  const int64_t panel_bytes = g.b.group / kDepth * kTileBytesHere;
  const int64_t block = kWidenedBytes / (2 * panel_bytes);
  const T* tiles = reinterpret_cast<const T*>(scratch.tiles);
  if (fresh) __builtin_memset(c, 0, static_cast<size_t>(rows) * 32 * sizeof(float));
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
    if constexpr (kScalesInRegisters && !kWholeNumbers<Codes>) {
      const int64_t panel_elements = panel_bytes / static_cast<int64_t>(sizeof(T));
      const GroupedBlock<Codes> groups_of_block{g, layout, records, tiles, panel_elements, first, count, row, scratch};
      if (g.b.group == 32)
        multiply_scaled<Codes, 32>(groups_of_block, rows, c);
      else
        multiply_scaled<Codes, 0>(groups_of_block, rows, c);
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
  using Sum = float;
  static int64_t unit(const PackedWeights& b) { return b.group; }
  static int64_t slab(const GemmArgs& g) {
    return g.blocking.slab_tiles * kTileDepth<typename Codes::Element> / g.b.group;
  }
  static void begin(const GemmArgs& g, int64_t row, int64_t rows, Range groups, GemmScratch& scratch) {
    if constexpr (!kWholeNumbers<Codes>) sum_groups(g, row, rows, groups, scratch);
  }
  static void add(const GemmArgs& g, int64_t row, int64_t rows, int64_t panel, Range groups, bool fresh, bool,
                  GemmScratch& scratch, float* c) {
    constexpr int kHalf = kWholeNumbers<Codes> ? kLines / 2 : kLines;
    if (add_groups_in_registers<Codes>(g, row, rows, panel, groups, fresh, scratch, c)) return;
    if (kHalf != kLines && g.b.group < kTileDepth<int8_t>)
      add_groups<Codes, kHalf>(g, row, rows, panel, groups, fresh, scratch, c);
    else
      add_groups<Codes, kLines>(g, row, rows, panel, groups, fresh, scratch, c);
  }
};

}  // namespace
}  // namespace numaserve
