// Activations of a product in the order in which vectors take them: rows that share a pass side by side, word by word
// (four bytes of k). Read where they lie, rows whose width is a power of two fall into the same set of the first-level
// cache and evict each other; side by side they are one stream. Each set has its own way to pack a pass and to multiply
// with it (packed_rows_avx512.inl, packed_rows_avx2.inl).
#pragma once

#include "kernels/gemm/heights.h"
#include "kernels/gemm/scratch.inl"
#include "kernels/gemm/tile.h"
#include "kernels/include/types.h"

namespace numaserve {
namespace {

inline constexpr int kSteps = 4;  // lines that are unrolled
// How far ahead of a single pass its weights are fetched to the first level.
inline constexpr int64_t kAheadBytes = 8 << 10;

// The operands of the pass of `height` rows that begins at row `first`, from word `word` of the activations on;
// `kPerWord` operands are made of a word.
template <int kPerWord = 1>
inline const ActivationWord* packed_pass(const GemmScratch& scratch, int64_t first, int height, int64_t word) {
  return scratch.packed + (first * scratch.words + (word - scratch.first_word) * height) * kPerWord;
}

}  // namespace
}  // namespace numaserve
