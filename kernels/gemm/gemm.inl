// The one GEMM loop nest. Instruction sets differ in how rows pass by weights (`tile_gemm`, or packed rows). Formats
// differ only in what four bytes of a line mean and how a finished sum is read.
//
// With many rows, for a thread's share of rows and panels:
//   rows in blocks of up to 256 or 512        weights are read from memory once per block: 256 operations per byte
//     panels in groups                        the block's results for a group stay in L2, in fp32
//       k in slabs                            the block of A for a slab stays in L2 while the group passes by it
//         panels in pairs
//           k in blocks                       a pair's block of weights stays in L1 while the rows pass by it
//             rows in tiles of 32, or packed in passes of up to 12
// The sizes depend on the set and the processor's caches (kernels/blocking.h). Results are carried between slabs and
// blocks of k in fp32 or int32, which is exact, so the bits do not depend on the blocking. For formats in groups
// (grouped.inl) a slab and a block are numbers of groups. With up to 32 rows there is nothing to reuse, and every pair
// of panels is read once, from its first tile to its last.
#pragma once

#include <type_traits>

#include "kernels/gemm/epilogue.inl"
#include "kernels/gemm/grouped/grouped.inl"
#include "kernels/gemm/plain.inl"
#include "kernels/gemm/scratch.inl"
#include "kernels/gemm/sums_in_rows.inl"
#include "kernels/gemm/tiles/tile.h"
#include "kernels/include/kernel_table.h"
#include "kernels/include/shares.h"
#include "kernels/simd/f32x16.h"

namespace numaserve {
namespace {

// Multiplies one row block by one group of panels, over all of k.
template <class Weights>
inline void gemm_block(const GemmArgs& g, int64_t row, int64_t rows, Range panels, bool streamed,
                       GemmScratch& scratch) {
  using Sum = typename Weights::Sum;
  const int64_t units = ceil_div(g.b.depth, Weights::unit(g.b)), slab = Weights::slab(g, rows, streamed);
  const auto of = [&](float* results, int64_t panel) {
    return reinterpret_cast<Sum*>(results) + (panel - panels.begin) / 2 * round_up(rows, kRowUnit) * 32;
  };
  for (int64_t index = 0; index < g.b.k_parts; ++index) {
    const Range part = split(units, g.b.k_parts, index);
    float* results = index == 0 ? scratch.c : scratch.part;
    const int64_t depth = part.end - part.begin, slabs = depth > slab ? ceil_div(depth, slab) : 1;
    for (int64_t i = 0; i < slabs; ++i) {  // once even if the part is empty
      const Range within = split(depth, slabs, i), some{part.begin + within.begin, part.begin + within.end};
      const bool last = some.end == part.end && index == g.b.k_parts - 1;
      const bool finishes = last && index == 0 && Weights::kFinishes;
      if (slab < units) Weights::begin(g, row, rows, some, scratch);
      for (int64_t panel = panels.begin; panel < panels.end; panel += 2) {
        Weights::add(g, row, rows, panel, some, i == 0, streamed, finishes, scratch, of(results, panel));
        if (some.end < part.end) continue;
        if (index > 0) Weights::add_part(rows, of(scratch.part, panel), of(scratch.c, panel), scratch);
        if (last && !finishes) Weights::finish(g, row, rows, panel, of(scratch.c, panel), scratch);
      }
    }
  }
}

template <class Weights>
inline void gemm_nest(const GemmArgs& g, const GemmShare& share, GemmScratch& scratch) {
  Weights::begin_share(g, share, scratch);
  const int64_t units = ceil_div(g.b.depth, Weights::unit(g.b));
  const int64_t all_rows = share.rows.end - share.rows.begin;
  const int64_t most = most_rows(g, (share.panels.end - share.panels.begin) / 2);
  for (int64_t index = 0; index < row_blocks(all_rows, most); ++index) {
    const Range block = row_block(all_rows, most, index);
    const int64_t row = share.rows.begin + block.begin, rows = block.end - block.begin;
    Weights::begin_rows(g, row, rows, scratch);
    const bool streamed = rows <= kStreamedRows;
    const bool whole = Weights::slab(g, rows, streamed) >= units;
    if (whole) Weights::begin(g, row, rows, {0, units}, scratch);
    // Two pairs where a pair is finished during the next one.
    const int64_t group = whole ? (Weights::kFinishes ? 4 : 2) : g.blocking.group_panels;
    for (int64_t first = share.panels.begin; first < share.panels.end; first += group) {
      const Range panels{first, share.panels.end - first < group ? share.panels.end : first + group};
      gemm_block<Weights>(g, row, rows, panels, streamed, scratch);
    }
    Weights::end_rows(g, scratch);
  }
  Weights::end_share(scratch);
}

// Computes the sums of parts of k and pairs of panels, one after the other; a thread's items lie in memory order.
template <class Weights>
inline void nest_parts(const GemmArgs& g, void* sums, GemmScratch& scratch, int thread, int threads) {
  using Sum = typename Weights::Sum;
  const Range items = share_of_parts(g, thread, threads);
  if (items.begin == items.end) return;  // of no rows there is no slab
  Weights::begin_share(g, {{0, g.m}, {0, g.b.n_panels}}, scratch);
  const int64_t units = ceil_div(g.b.depth, Weights::unit(g.b)), slab = Weights::slab(g, g.m, true);
  for (int64_t item = items.begin; item < items.end; ++item) {
    const Range part = split(units, g.b.k_parts, item % g.b.k_parts);
    Sum* to = static_cast<Sum*>(sums) + item * kStreamedRows * 32;
    int64_t k = part.begin;
    do {
      const Range some{k, part.end - k < slab ? part.end : k + slab};
      Weights::begin(g, 0, g.m, some, scratch);
      Weights::add(g, 0, g.m, item / g.b.k_parts * 2, some, k == part.begin, true, false, scratch, to);
      k = some.end;
    } while (k < part.end);
  }
}

template <class Weights>
inline void finish_parts(const GemmArgs& g, void* sums, int thread, int threads) {
  using Sum = typename Weights::Sum;
  const Range pairs = share_of_pairs(g, thread, threads);
  float row_scales[kStreamedRows] = {};
  if constexpr (std::is_same_v<Sum, int32_t>) gather_scales(g, 0, g.m, row_scales);
  alignas(64) float added[kStreamedRows * kExpandedColumns];
  if (g.expand.adapters != nullptr) tile_begin(g.m);
  for (int64_t pair = pairs.begin; pair < pairs.end; ++pair) {
    Sum* c = static_cast<Sum*>(sums) + pair * g.b.k_parts * kStreamedRows * 32;
    for (int64_t part = 1; part < g.b.k_parts; ++part) add_values(c + part * kStreamedRows * 32, g.m * 32, c);
    expand_late(g, 0, g.m, 2 * pair, added);
    gemm_epilogue(g, c, 0, g.m, 2 * pair, row_scales, added);
  }
}

// Calls `work` with the loop nest's view of the weights for a share of `rows` rows.
template <class Work>
inline void with_weights(const GemmArgs& g, int64_t rows, Work&& work) {
  switch (g.b.format) {
    case WeightFormat::kBf16:
      return work(Plain<bf16>{});
    case WeightFormat::kInt8:
      return work(Plain<int8_t>{});
    case WeightFormat::kInt4:
      return g.widened ? work(Grouped<Int4GroupValues>{}) : work(Grouped<Int4Groups>{});
    case WeightFormat::kInt8Group:
      return g.widened ? work(Grouped<Int8GroupValues>{}) : work(Grouped<Int8Groups>{});
    case WeightFormat::kFp8:
      return work(Grouped<E4m3GroupValues>{});
    case WeightFormat::kMxfp4:
      if (!g.widened) return work(Grouped<Mxfp4Groups>{});
      return sums_groups(rows) ? work(Grouped<Mxfp4GroupValues>{}) : work(WithScales<Mxfp4GroupValues>{});
    case WeightFormat::kIq4:
      return g.widened ? work(Grouped<Iq4GroupValues>{}) : work(Grouped<Iq4Groups>{});
    case WeightFormat::kNvfp4:
      return work(WithScales<Nvfp4GroupValues>{});
    case WeightFormat::kIq3:
      return g.widened ? work(Grouped<Iq3GroupValues>{}) : work(Grouped<Iq3Groups>{});
    case WeightFormat::kIq2:
      return g.widened ? work(Grouped<Iq2GroupValues>{}) : work(Grouped<Iq2Groups>{});
  }
}

inline void gemm_share(const GemmArgs& g, const GemmShare& share, void* memory) {
  auto& scratch = *static_cast<GemmScratch*>(memory);
  with_weights(g, share.rows.end - share.rows.begin,
               [&]<class Weights>(Weights) { gemm_nest<Weights>(g, share, scratch); });
}

inline void gemm_parts(const GemmArgs& g, void* sums, void* memory, int thread, int threads) {
  auto& scratch = *static_cast<GemmScratch*>(memory);
  with_weights(g, g.m, [&]<class Weights>(Weights) { nest_parts<Weights>(g, sums, scratch, thread, threads); });
}

inline void gemm_finish(const GemmArgs& g, void* sums, int thread, int threads) {
  with_weights(g, g.m, [&]<class Weights>(Weights) { finish_parts<Weights>(g, sums, thread, threads); });
}

inline void gemm(const GemmArgs& g, void* scratch, int thread, int threads) {
  for_share(g, most_rows_of_share(g, threads), thread, threads,
            [&](const GemmShare& share) { gemm_share(g, share, scratch); });
}

inline int64_t gemm_peak(WeightFormat format, PeakOperands operands, int64_t rounds) {
  const auto peak = [&]<class T>(T) {
    return operands == PeakOperands::kRandom ? tile_peak_of_random<T>(rounds) : tile_peak<T>(rounds);
  };
  return takes_int8(format) ? peak(int8_t{}) : peak(bf16{});
}

}  // namespace
}  // namespace numaserve
