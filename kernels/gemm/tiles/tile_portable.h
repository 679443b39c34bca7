// The GEMM micro-tile of the portable set, with AVX2.
#pragma once

#include <immintrin.h>

#include "kernels/gemm/pack_avx2.h"
#include "kernels/gemm/tiles/heights.h"
#include "kernels/gemm/tiles/random_operands.h"
#include "kernels/gemm/tiles/sums_avx2.h"
#include "kernels/include/types.h"
#include "kernels/simd/unrolled.h"

namespace numaserve {
namespace {

inline constexpr int kActivationOffset = 0;
// Only weights stay in the cache; activations are streamed.
inline constexpr FirstLevelUse kFirstLevelUse = {.quarters = 2, .tile_bytes = 2 * kTileBytes, .other_bytes = 0};
inline constexpr bool kPacksRows = true;  // see packed_rows_avx2.inl
inline constexpr bool kPacksTiles = false;
// The maximum number of rows for which weights are widened in registers (grouped_avx2.inl).
template <class Element>
inline constexpr int64_t kRowsInRegisters = sizeof(Element) == 1 ? kRowBlock : kMostTogether;
template <class Element>
inline int64_t rows_in_registers(int64_t, Offsets) {
  return kRowsInRegisters<Element>;
}
inline constexpr int kFewestFetched = 1;

// Multiplies a panel by the rows of a pass, whose activations are packed; see tile_gemm.
template <int kRows, class TileAt>
NUMASERVE_FLAT inline void tile_pass_by_panel(const ActivationWord* a, TileAt b, int64_t k_tiles, float* c, int64_t ldc,
                                              bool accumulate) {
  constexpr int kPer = FloatOperands::kPerWord, kUnrolled = 4;
  Fp32Sums sums[kRows];
  unrolled<kRows>([&]<int r>()
                      NUMASERVE_INLINE { sums[r] = accumulate ? Fp32Sums::load(c + r * ldc) : Fp32Sums::zero(); });
  for (int64_t kt = 0; kt < k_tiles; ++kt) {
    const bf16* tile = b(kt);
    for (int line = 0; line < kLines; line += kUnrolled, a += kUnrolled * kPer * kRows)
      unrolled<kUnrolled>([&]<int step>() NUMASERVE_INLINE {
        const Columns raw = load_line(tile + (line + step) * kTileN * kLineDepth<bf16>);
        unrolled<kPer>([&]<int i>() NUMASERVE_INLINE {
          const Columns columns = widened(raw, [](__m256i x) { return FloatOperands::widen<i>(x); });
          unrolled<kRows>([&]<int r>() NUMASERVE_INLINE {
            sums[r].add(_mm256_set1_epi32(a[(step * kPer + i) * kRows + r]), columns);
          });
        });
      });
  }
  unrolled<kRows>([&]<int r>() NUMASERVE_INLINE { sums[r].store(c + r * ldc); });
}

// c[rows, panels * 16] (+)= a[rows, k] · B, where b(kt) is the tile of the first panel for k tile kt. The tile of each
// further panel lies `panel_stride` elements after the one before; `panels` is even. Each element is one chain of fused
// multiply-adds in k order, whatever `rows` is, so a row's bits do not depend on its batch. `rows` is the result of
// `rows_at_once` for the rows that are left of the number that this thread gave to `tile_begin`. Rows beyond them are
// neither read nor written. It serves attention, whose k is at most kMostTileDepth; products use packed_rows_avx2.inl.
inline constexpr int64_t kMostTileDepth = kMaxLatentDim > kMaxHeadDim ? kMaxLatentDim : kMaxHeadDim;
template <class TileAt>
inline void tile_gemm(const bf16* a, int64_t lda, TileAt b, int64_t panel_stride, int panels, int64_t k_tiles, float* c,
                      int64_t ldc, int rows, bool accumulate) {
  alignas(64) ActivationWord packed[kMostTileDepth * kMostTogether + 8];
  const auto* words = reinterpret_cast<const ActivationWord*>(a);
  const int together = rows_together(rows, kMostTogether);
  for (int r = 0; r < rows; r += together)
    with_height(pass_height(rows, r, together), [&]<int kRows>() {
      pack_pass<FloatOperands, kRows>(words + r * lda / 2, lda / 2, k_tiles * kLines, packed);
      for (int p = 0; p < panels; p += 2) {
        // `b` is called once for both panels of a pair, because each call of `b` also prefetches.
        const bf16* tiles[kMostTileDepth / kTileK];
        const auto first = [&](int64_t kt) { return tiles[kt] = b(kt) + p * panel_stride; };
        const auto second = [&](int64_t kt) { return tiles[kt] + panel_stride; };
        float* out = c + r * ldc + p * kTileN;
        tile_pass_by_panel<kRows>(packed, first, k_tiles, out, ldc, accumulate);
        tile_pass_by_panel<kRows>(packed, second, k_tiles, out + kTileN, ldc, accumulate);
      }
    });
}

inline void tile_begin(int64_t) {}
inline int rows_at_once(int64_t left) { return static_cast<int>(left < 32 ? left : 32); }

// Makes the compiler keep a sum. It is a function because clang does not capture in a lambda a variable that only asm
// names.
NUMASERVE_INLINE inline void need(const auto& sum) { __asm__ volatile("" ::"x"(sum.low), "x"(sum.high)); }

// Runs as many multiply-adds as the processor can, to measure its peak; returns the number of operations.
template <class T>
NUMASERVE_FLAT inline int64_t tile_peak(int64_t rounds) {
  constexpr int kSums = kMostTogether;
  using Sums = typename DotOf<T>::Sums;
  Sums sums[kSums];
  unrolled<kSums>([&]<int s>() NUMASERVE_INLINE {
    sums[s] = Sums::zero();
    __asm__("" : "+x"(sums[s].low), "+x"(sums[s].high));
  });
  Columns columns{_mm256_set1_epi32(0x3f803f80), _mm256_set1_epi32(0x3f803f80)};
  __asm__("" : "+x"(columns.low), "+x"(columns.high));
  ActivationWord x = 0x3f803f80;
  constexpr int kTimes = 4;
  for (int64_t i = 0; i < rounds; ++i) {
    __m256i activations = _mm256_set1_epi32(x);
    unrolled<kTimes * kSums>([&]<int s>() NUMASERVE_INLINE {
      __asm__("" : "+x"(activations));  // otherwise the compiler would know that all products are equal
      sums[s % kSums].add(activations, columns);
    });
    __asm__ volatile("" : "+m"(x));
  }
  unrolled<kSums>([&]<int s>() NUMASERVE_INLINE { need(sums[s]); });
  return rounds * kTimes * kSums * 2 * kTileN * kLineDepth<T> / DotOf<T>::Operands::kPerWord;
}

// The same with random operands from the first level, as wide as packed ones: at each step a line, and a word of each
// row.
template <class T>
NUMASERVE_FLAT inline int64_t tile_peak_of_random(int64_t rounds) {
  constexpr int kSums = kMostTogether, kTimes = 4, kSteps = 64, kLineWords = kLineBytes / 4, kHalf = kLineWords / 2;
  using Operands = typename DotOf<T>::Operands;
  using Sums = typename DotOf<T>::Sums;
  RandomOperands<T, kSteps * kTimes * kLineBytes> operands;
  for (int i = 0; i < operands.kWords; i += kHalf) {
    auto* half = reinterpret_cast<__m256i*>(operands.words + i);
    _mm256_store_si256(half, Operands::template widen<0>(_mm256_load_si256(half)));
  }
  Sums sums[kSums];
  unrolled<kSums>([&]<int s>() NUMASERVE_INLINE { sums[s] = Sums::zero(); });
  for (int64_t i = 0; i < rounds; ++i) {
    const ActivationWord* words = operands.words + i % kSteps * kTimes * kLineWords;
    unrolled<kTimes>([&]<int step>() NUMASERVE_INLINE {
      const Columns columns = load_line(words + step * kLineWords);
      unrolled<kSums>(
          [&]<int s>() NUMASERVE_INLINE { sums[s].add(_mm256_set1_epi32(words[step * kLineWords + 2 * s]), columns); });
    });
  }
  unrolled<kSums>([&]<int s>() NUMASERVE_INLINE { need(sums[s]); });
  return rounds * kTimes * kSums * 2 * kTileN * kLineDepth<T> / Operands::kPerWord;
}

}  // namespace
}  // namespace numaserve
