// Passes of packed rows by weights in groups. Codes are widened in registers with few rows, because tiles in the cache
// would be written for a single read. Codes that are cheap to widen are widened in registers for any number of rows.
// Other codes are widened to tiles. Each set has its own passes (`code_pass`, `tile_pass`: grouped_avx512.inl,
// grouped_avx2.inl). Sums within a group are exact, or the same chain of additions in both ways.
#pragma once

#include "kernels/gemm/grouped/group_pass.h"

#if defined(__AVX512VNNI__)
#include "kernels/gemm/grouped/grouped_avx512.inl"
#else
#include "kernels/gemm/grouped/grouped_avx2.inl"
#endif

namespace numaserve {
namespace {

// Calls `pass(height, GroupPass)` for the passes of all rows by some groups. `next`: the memory that the first pass
// prefetches.
template <class Codes, class Pass>
inline void for_passes(const GemmArgs& g, const GroupLayout& layout, int64_t row, int64_t rows, int64_t panel,
                       Range groups, const std::byte* next, const GemmScratch& scratch, Pass&& pass) {
  const int64_t word = groups.begin * g.b.group / kLineDepth<typename Codes::Element>;
  const int together = scratch.together;
  for (int64_t r = 0; r < rows; r += together) {
    const int height = pass_height(rows, r, together);
    pass(height, GroupPass{g, layout, scratch, pair_records(g.b, layout, panel), groups, row, r, rows - r,
                           packed_pass<kPerWord<Codes>>(scratch, r, height, word), next});
  }
}

// Adds groups [begin, end) of one pair of panels to `c` [rows][32].
template <class Codes>
inline void add_groups_in_registers(const GemmArgs& g, int64_t row, int64_t rows, int64_t panel, Range groups,
                                    const GemmScratch& scratch, float* c) {
  const GroupLayout layout = group_layout(Codes::kFormat, g.b.group, g.b.offsets);
  const std::byte* records = pair_records(g.b, layout, panel);
  const bool alone = rows <= scratch.together;
  // A block of weights stays in the first level while the rows pass by it.
  const int64_t wanted = ceil_div(g.blocking.block_tiles * kTileBytes, layout.bytes);
  const int64_t block = alone ? groups.end - groups.begin : wanted;
  for (int64_t first = groups.begin; first < groups.end; first += block) {
    const Range some{first, groups.end - first < block ? groups.end : first + block};
    const std::byte* next = records + some.begin * layout.bytes + (alone ? kAheadBytes : block * layout.bytes);
    for_passes<Codes>(g, layout, row, rows, panel, some, next, scratch, [&](int height, const GroupPass& pass) {
      with_height<kMostCodeRows<Codes>>(height, [&]<int kRows>() {
        with_offsets<Codes>(g.b.offsets, [&]<Offsets kOffsets>() {
          // The first pass prefetches the next block.
          if (kRows >= kFewestFetched && pass.first == 0)
            code_pass<Codes, kRows, (kRows >= kFewestFetched), kOffsets>(pass, c + pass.first * 32);
          else
            code_pass<Codes, kRows, false, kOffsets>(pass, c + pass.first * 32);
        });
      });
    });
  }
}

// The same for a block of groups whose codes are in tiles.
template <class Codes>
inline void multiply_scaled(const GemmArgs& g, const GroupLayout& layout, int64_t row, int64_t rows, int64_t panel,
                            Range groups, const GemmScratch& scratch, float* c) {
  const std::byte* next = pair_records(g.b, layout, panel) + groups.end * layout.bytes;
  for_passes<Codes>(g, layout, row, rows, panel, groups, next, scratch, [&](int height, const GroupPass& pass) {
    with_height(height, [&]<int kRows>() {
      with_offsets<Codes>(g.b.offsets, [&]<Offsets kOffsets>() {
        if (kRows > 4 && pass.first == 0)
          tile_pass<Codes, kRows, (kRows > 4), kOffsets>(pass, scratch.tiles, c + pass.first * 32);
        else
          tile_pass<Codes, kRows, false, kOffsets>(pass, scratch.tiles, c + pass.first * 32);
      });
    });
  });
}

}  // namespace
}  // namespace numaserve
