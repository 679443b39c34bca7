// The GEMM micro-tile of the avx512 set: VDPBF16PS or VPDPBUSD with four bytes of activations broadcast from memory.
// The contract of `tile_gemm` is in tile_portable.h. It serves attention in bf16; products use packed_rows_avx512.inl.
#pragma once

#include <immintrin.h>

#include "kernels/gemm/scratch.inl"
#include "kernels/gemm/tiles/random_operands.h"
#include "kernels/gemm/tiles/sums_avx512.h"
#include "kernels/include/types.h"
#include "kernels/simd/prefetch.h"

namespace numaserve {
namespace {

// VPDPBUSD needs an unsigned first operand: activations are stored with this offset, and results are corrected.
inline constexpr int kActivationOffset = 128;
// Only weights stay in the cache; activations are streamed.
inline constexpr FirstLevelUse kFirstLevelUse = {.quarters = 2, .tile_bytes = 2 * kTileBytes, .other_bytes = 0};
inline constexpr bool kPacksRows = true;  // see packed_rows_avx512.inl
inline constexpr bool kPacksTiles = false;
// The maximum number of rows for which a KV cache is widened in registers (kv_tiles_avx512.inl).
inline constexpr int kKvRowsInRegisters = 8;
// The maximum number of rows for which weights are widened in registers (grouped_avx512.inl).
template <class Element>
inline constexpr int64_t kRowsInRegisters = sizeof(Element) == 1 ? kRowBlock : kMostTogether;
template <class Element>
inline int64_t rows_in_registers(int64_t, Offsets) {
  return kRowsInRegisters<Element>;
}
// With fewer rows, groups are read as fast as by a plain read loop (Zen 4), without prefetching.
inline constexpr int kFewestFetched = 5;

template <int kRows, class TileAt>
inline void avx512_rows(const bf16* a, int64_t lda, TileAt b, int64_t panel_stride, int64_t k_tiles, float* c,
                        int64_t ldc, bool accumulate) {
  constexpr int kDepth = kLineDepth<bf16>;
  Fp32Sums acc[kRows][2];
  if (accumulate)
    for (int r = 0; r < kRows; ++r)
      for (int p = 0; p < 2; ++p) acc[r][p].load(c + r * ldc + p * kTileN);
  // Two panels go side by side, one broadcast activation for both.
  for (int64_t kt = 0; kt < k_tiles; ++kt) {
    const bf16* tile = b(kt);
#pragma GCC unroll 4
    for (int line = 0; line < kLines; ++line) {
      __m512i columns[2];
      for (int p = 0; p < 2; ++p) columns[p] = _mm512_loadu_si512(tile + p * panel_stride + line * kTileN * kDepth);
      for (int r = 0; r < kRows; ++r) {
        int bits;
        __builtin_memcpy(&bits, a + r * lda + (kt * kLines + line) * kDepth, sizeof(bits));
        for (int p = 0; p < 2; ++p) acc[r][p].add(bits, columns[p]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int p = 0; p < 2; ++p) acc[r][p].store(c + r * ldc + p * kTileN);
}

template <class TileAt>
inline void tile_gemm(const bf16* a, int64_t lda, TileAt b, int64_t panel_stride, int panels, int64_t k_tiles, float* c,
                      int64_t ldc, int rows, bool accumulate) {
  for (int panel = 0; panel < panels; panel += 2) {
    const auto tile = [&](int64_t kt) { return b(kt) + panel * panel_stride; };
    float* out = c + panel * kTileN;
    // Twelve rows by two panels fill the registers; fewer rows go in one pass too, so that weights are read once.
    const auto pass = [&]<int kRows>(int r) {
      avx512_rows<kRows>(a + r * lda, lda, tile, panel_stride, k_tiles, out + r * ldc, ldc, accumulate);
      return kRows;
    };
    int r = 0;
    while (rows - r >= 12) r += pass.template operator()<12>(r);
    while (rows - r >= 8) r += pass.template operator()<8>(r);
    while (rows - r >= 4) r += pass.template operator()<4>(r);
    if (rows - r == 3) pass.template operator()<3>(r);
    if (rows - r == 2) pass.template operator()<2>(r);
    if (rows - r == 1) pass.template operator()<1>(r);
  }
}

inline void tile_begin(int64_t) {}
inline int rows_at_once(int64_t left) { return static_cast<int>(left < 32 ? left : 32); }

// Runs as many multiply-adds as the processor can, to measure its peak; returns the number of operations.
template <class T>
inline int64_t tile_peak(int64_t rounds) {
  typename SumsOf<T>::type acc[16];
  int x = 0x3f803f80;
  for (int64_t i = 0; i < rounds; ++i) {
    const __m512i line = _mm512_set1_epi32(x);
    for (auto& sums : acc) sums.add(x, line);
    __asm__ volatile("" : "+r"(x));
  }
  for (const auto& sums : acc) __asm__ volatile("" ::"v"(sums.v));
  return rounds * 16 * 2 * kTileN * kLineDepth<T>;
}

// The same with random operands from the first level: at each step a line of two panels, and a word of eight rows.
template <class T>
inline int64_t tile_peak_of_random(int64_t rounds) {
  constexpr int kSteps = 128, kRows = 8, kLineWords = kLineBytes / 4;
  const RandomOperands<T, kSteps * 2 * kLineBytes> operands;
  typename SumsOf<T>::type acc[kRows][2];
  for (int64_t i = 0; i < rounds; ++i) {
    const ActivationWord* words = operands.words + i % kSteps * 2 * kLineWords;
    const __m512i columns[2] = {_mm512_load_si512(words), _mm512_load_si512(words + kLineWords)};
    for (int r = 0; r < kRows; ++r)
      for (int p = 0; p < 2; ++p) acc[r][p].add(words[2 * r], columns[p]);
  }
  for (const auto& row : acc)
    for (const auto& sums : row) __asm__ volatile("" ::"v"(sums.v));
  return rounds * kRows * 2 * 2 * kTileN * kLineDepth<T>;
}

}  // namespace
}  // namespace numaserve
