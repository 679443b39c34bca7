// bf16 results that are written past the caches, as whole lines.
//
// An ordinary store to a line that no cache has reads it first. Where the result is larger than the second level, these
// reads are half of its traffic, and they hold the miss buffers that tile loads need. The next operation reads the
// result from the third level or memory in any case. Measured with AMX, gate and up of Llama-1B with 512 rows: 1.3
// times the speed.
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
  constexpr int64_t kLineElements = kLineBytes / static_cast<int64_t>(sizeof(bf16));
  const int64_t bytes = g.m * g.ldo * static_cast<int64_t>(sizeof(bf16));
  const bool whole_lines = reinterpret_cast<uintptr_t>(g.out_bf16) % kLineBytes == 0 && g.ldo % kLineElements == 0;
  if (g.out_bf16 == nullptr || !whole_lines || bytes <= g.blocking.streamed_bytes) return {0, 0};
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

// `gemm_epilogue` for panels that are streamed; `halves` are those of the rows.
template <SumLayout kLayout, class Sum>
inline void stream_results(const GemmArgs& g, const Sum* c, int64_t row, int64_t rows, int64_t panel,
                           const float* row_scales, bf16* halves) {
  const FinishedSums<kLayout, Sum> sums{g, c, row_scales, panel};
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

}  // namespace
}  // namespace numaserve
