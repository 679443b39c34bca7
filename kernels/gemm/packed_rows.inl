// Activations of a product in the order in which vectors take them: rows that share a pass side by side, word by word
// (four bytes of k). Read where they lie, rows whose width is a power of two fall into the same set of the first-level
// cache and evict each other; side by side they are one stream. Each set has its own way to pack a pass and to multiply
// with it (packed_rows_avx512.inl, packed_rows_avx2.inl).
#pragma once

#include "kernels/gemm/scratch.inl"
#include "kernels/gemm/tile.h"
#include "kernels/include/types.h"

namespace numaserve {
namespace {

inline constexpr int kSteps = 4;  // lines that are unrolled
// How far ahead of a single pass its weights are fetched to the first level.
inline constexpr int64_t kAheadBytes = 8 << 10;

// The rows of each pass but the last: as even as the heights that there are allow.
inline int rows_together(int64_t rows, int64_t most) {
  const int64_t passes = ceil_div(rows, most), each = ceil_div(rows, passes);
  return static_cast<int>(each <= 2 ? each : round_up(each, kHeightStep));
}
// The height of the pass that begins at row `first`.
inline int pass_height(int64_t rows, int64_t first, int together) {
  return rows - first >= together ? together : rows_together(rows - first, together);
}

// Calls `work` with the height of a pass, at most `kMost`, as a constant.
template <int kMost = kMostTogether, class Work>
inline void with_height(int height, Work&& work) {
  if constexpr (kMost > 2) {
    constexpr int kNext = kMost > 2 + kHeightStep ? kMost - kHeightStep : 2;
    if (height < kMost) return with_height<kNext>(height, work);
  } else if constexpr (kMost == 2) {
    if (height == 1) return work.template operator()<1>();
  }
  work.template operator()<kMost>();
}

// The operands of the pass of `height` rows that begins at row `first`, from word `word` of the activations on;
// `kPerWord` operands are made of a word.
template <int kPerWord = 1>
inline const ActivationWord* packed_pass(const GemmScratch& scratch, int64_t first, int height, int64_t word) {
  return scratch.packed + (first * scratch.words + (word - scratch.first_word) * height) * kPerWord;
}

}  // namespace
}  // namespace numaserve
