// Results that are written past the caches, as whole lines.
//
// An ordinary store to a line that no cache has reads it first. Where the result is larger than the second level, these
// reads are half of its traffic, and they hold the miss buffers that tile loads need. The next operation reads the
// result from the third level or memory in any case. Measured with AMX, products of Llama-1B with 512 rows: gate and up
// in bf16 1.3 times the speed, queries, keys and values in fp32 1.2 times. Results that are added to what is there are
// read in any case: streaming these too took 1.05 times as long.
//
// A gated pair of panels gives half a line. The half of an even pair waits in a buffer, which the first or second level
// holds, for that of the next pair. The first and last pair of a thread may have no such partner, because another
// thread has it: both then write their halves with ordinary stores.
//
// Such stores are not ordered with later ones, so a thread executes a fence (`fence_streams`) at the end of its share,
// before any barrier, counter or arrival at the ring. x86 processors order them with locked instructions, but not with
// the plain stores by which threads and ranks publish.
#pragma once

#include <immintrin.h>

#include "kernels/gemm/epilogue.inl"
#include "kernels/gemm/scratch.inl"
#include "kernels/include/kernel_table.h"
#include "kernels/simd/f32x16.h"

namespace numaserve {
namespace {

inline constexpr int64_t kJoinedPanels = 4;  // two gated pairs, whose results fill lines

// Returns the panels of a share whose results are streamed.
inline Range streamed_panels(const GemmArgs& g, const GemmShare& share) {
  const bool is_fp32 = g.out_f32 != nullptr;
  const int64_t row_bytes = g.ldo * static_cast<int64_t>(is_fp32 ? sizeof(float) : sizeof(bf16));
  const auto out = is_fp32 ? reinterpret_cast<uintptr_t>(g.out_f32) : reinterpret_cast<uintptr_t>(g.out_bf16);
  const bool whole_lines = out % kLineBytes == 0 && row_bytes % kLineBytes == 0;
  if (g.m <= kStreamedRows || g.accumulate || !whole_lines || g.result_bytes <= g.blocking.streamed_bytes)
    return {0, 0};
  if (!is_gated(g.activation)) return share.panels;
  return {round_up(share.panels.begin, kJoinedPanels), share.panels.end / kJoinedPanels * kJoinedPanels};
}

inline bool streams(const StreamedLines& streamed, int64_t panel) {
  return panel >= streamed.panels.begin && panel < streamed.panels.end;
}

inline void fence_streams(const StreamedLines& streamed) {
  if (streamed.panels.begin < streamed.panels.end) NUMASERVE_STREAM_FENCE();
}

inline void stream(bf16* line, __m256i first, __m256i second) {
  NUMASERVE_STREAM_LINE(line, _mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1));
}

// `gemm_epilogue` for panels that are streamed: in fp32, and in bf16; `halves` are those of the rows.
template <SumLayout kLayout, class Sum>
inline void stream_floats(const GemmArgs& g, const FinishedSums<kLayout, Sum>& sums, int64_t row, int64_t rows) {
  float* line = g.out_f32 + row * g.ldo + sums.panel * kTileN;
  for (int64_t r = 0; r < rows; ++r, line += g.ldo)
    for (int half = 0; half < 2; ++half)
      NUMASERVE_STREAM_LINE(line + half * kTileN, _mm512_castps_si512(sums.ungated_at(r, half).v));
}
template <SumLayout kLayout, class Sum>
inline void stream_rounded(const GemmArgs& g, const FinishedSums<kLayout, Sum>& sums, int64_t row, int64_t rows,
                           bf16* halves) {
  const int64_t panel = sums.panel;
  const bool is_gate = is_gated(g.activation), first = panel % kJoinedPanels == 0;
  const int64_t column = (is_gate ? panel / kJoinedPanels * 2 : panel) * kTileN;
  for (int64_t r = 0; r < rows; ++r, halves += kTileN) {
    bf16* line = result_at(g, row + r, column);
    if (!is_gate)
      stream(line, sums.ungated_at(r, 0).rounded(), sums.ungated_at(r, 1).rounded());
    else if (first)
      sums.gated_at(r).store(halves);
    else
      stream(line, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(halves)), sums.gated_at(r).rounded());
  }
}

// Finishes the sums `c` of `count` rows from row `first` of the row block on, which begins at `row`.
template <SumLayout kLayout, class Sum>
inline void finish_results(const GemmArgs& g, const Sum* c, int64_t row, int64_t first, int64_t count, int64_t panel,
                           GemmScratch& scratch) {
  const float *row_scales = scratch.row_scales + first, *added = scratch.expanded + first * kExpandedColumns;
  if (!streams(scratch.streamed, panel))
    return gemm_epilogue<kLayout>(g, c, row + first, count, panel, row_scales, added);
  const FinishedSums<kLayout, Sum> sums{g, c, row_scales, added, row + first, panel};
  if (g.out_f32 != nullptr)
    stream_floats(g, sums, row + first, count);
  else
    stream_rounded(g, sums, row + first, count, scratch.streamed.halves + first * kTileN);
}

}  // namespace
}  // namespace numaserve
