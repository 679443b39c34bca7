// Activations of a product in vector order: the rows of a pass side by side, word by word (four bytes of k). In place,
// rows whose width is a power of two fall into the same set of the first-level cache and evict each other; packed, they
// are one stream. Each set packs a pass and multiplies with it in its own way (packed_rows_avx512.inl,
// packed_rows_avx2.inl).
#pragma once

#include "kernels/gemm/scratch.inl"
#include "kernels/gemm/tiles/heights.h"
#include "kernels/gemm/tiles/tile.h"
#include "kernels/include/types.h"

namespace numaserve {
namespace {

inline constexpr int kSteps = 4;  // lines that are unrolled
// Distance at which a single pass prefetches its weights to the first level.
inline constexpr int64_t kAheadBytes = 8 << 10;

// Returns the operands of the pass of `height` rows that begins at row `first`, from word `word` of the activations on.
// A word becomes `kPerWord` operands.
template <int kPerWord = 1>
inline const ActivationWord* packed_pass(const GemmScratch& scratch, int64_t first, int height, int64_t word) {
  return scratch.packed + (first * scratch.words + (word - scratch.first_word) * height) * kPerWord;
}

}  // namespace
}  // namespace numaserve
