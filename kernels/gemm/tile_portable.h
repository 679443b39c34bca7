// The GEMM micro-tile of the portable set, with AVX2.
#pragma once

#include <immintrin.h>

#include "kernels/gemm/sums_avx2.h"
#include "kernels/include/types.h"
#include "kernels/simd/unrolled.h"

namespace numaserve {
namespace {

inline constexpr int kActivationOffset = 0;
// Weights alone: activations are a stream beside them.
inline constexpr FirstLevelUse kFirstLevelUse = {.quarters = 2, .tile_bytes = 2 * kTileBytes, .other_bytes = 0};
inline constexpr bool kPacksRows = true;  // see packed_rows_avx2.inl
inline constexpr bool kPacksTiles = false;
inline constexpr int kKvRowsInRegisters = 0;
// Up to how many rows meet weights that are widened in registers (grouped_avx2.inl).
template <class Element>
inline constexpr int64_t kRowsInRegisters = sizeof(Element) == 1 ? kRowBlock : kMostTogether;
template <class Element>
inline int64_t rows_in_registers(int64_t) {
  return kRowsInRegisters<Element>;
}
inline constexpr int kFewestFetched = 1;

// c[rows, panels * 16] (+)= a[rows, k] · B, where b(kt) is the tile of the first panel for k-tile kt and each further
// panel's lies `panel_stride` elements on; `panels` is even. Each element is one chain of fused multiply-adds in k
// order, whatever `rows` is, which is what makes a row's bits independent of its batch. `rows` is what `rows_at_once`
// says of the rows that are left of those that this thread has named to `tile_begin`, for this product or before it;
// rows beyond them are neither read nor written. It serves attention; products take packed_rows_avx2.inl.
template <int kRows, int kPanels, class TileAt>
NUMASERVE_FLAT inline void portable_rows(const bf16* a, int64_t lda, TileAt b, int64_t panel_stride, int64_t k_tiles,
                                         float* c, int64_t ldc, bool accumulate) {
  constexpr int kDepth = kLineDepth<bf16>, kUnrolled = 4;
  Fp32Sums sums[kRows * kPanels];
  unrolled<kRows * kPanels>([&]<int i>() NUMASERVE_INLINE {
    sums[i] = accumulate ? Fp32Sums::load(c + i / kPanels * ldc + i % kPanels * kTileN) : Fp32Sums::zero();
  });
  for (int64_t kt = 0; kt < k_tiles; ++kt) {
    const bf16* tile = b(kt);
    unrolled<kPanels>([&]<int p>() NUMASERVE_INLINE {
      for (int line = 0; line < kLines; line += kUnrolled)
        unrolled<kUnrolled>([&]<int step>() NUMASERVE_INLINE {
          const Columns raw = load_line(tile + p * panel_stride + (line + step) * kTileN * kDepth);
          unrolled<FloatOperands::kPerWord>([&]<int i>() NUMASERVE_INLINE {
            const Columns columns = widened(raw, [](__m256i x) { return FloatOperands::widen<i>(x); });
            unrolled<kRows>([&]<int r>() NUMASERVE_INLINE {
              int word;
              __builtin_memcpy(&word, a + r * lda + (kt * kLines + line + step) * kDepth, sizeof(word));
              sums[r * kPanels + p].add(FloatOperands::widen<i>(_mm256_set1_epi32(word)), columns);
            });
          });
        });
    });
  }
  unrolled<kRows * kPanels>([&]<int i>()
                                NUMASERVE_INLINE { sums[i].store(c + i / kPanels * ldc + i % kPanels * kTileN); });
}

template <class TileAt>
inline void tile_gemm(const bf16* a, int64_t lda, TileAt b, int64_t panel_stride, int panels, int64_t k_tiles, float* c,
                      int64_t ldc, int rows, bool accumulate) {
  for (int panel = 0; panel < panels; panel += 2) {
    // Six rows by one panel fill the registers, or three by two.
    const auto pass = [&]<int kRows>(int r) {
      constexpr int kPanels = kRows <= 3 ? 2 : 1;
      for (int p = panel; p < panel + 2; p += kPanels) {
        const auto tile = [&](int64_t kt) { return b(kt) + p * panel_stride; };
        portable_rows<kRows, kPanels>(a + r * lda, lda, tile, panel_stride, k_tiles, c + r * ldc + p * kTileN, ldc,
                                      accumulate);
      }
      return kRows;
    };
    int r = 0;
    while (rows - r >= 6) r += pass.template operator()<6>(r);
    if (rows - r >= 4) r += pass.template operator()<4>(r);
    if (rows - r == 3) pass.template operator()<3>(r);
    if (rows - r == 2) pass.template operator()<2>(r);
    if (rows - r == 1) pass.template operator()<1>(r);
  }
}

inline void tile_begin(int64_t, int = kLines) {}
inline int rows_at_once(int64_t left) { return static_cast<int>(left < 32 ? left : 32); }

// As many multiply-adds as the processor can do, for measuring what that is; returns how many operations it did.
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
      __asm__("" : "+x"(activations));  // or all products would be known to be one
      sums[s % kSums].add(activations, columns);
    });
    __asm__ volatile("" : "+m"(x));
  }
  unrolled<kSums>([&]<int s>() NUMASERVE_INLINE { __asm__ volatile("" ::"x"(sums[s].low), "x"(sums[s].high)); });
  return rounds * kTimes * kSums * 2 * kTileN * kLineDepth<T> / DotOf<T>::Operands::kPerWord;
}

}  // namespace
}  // namespace numaserve
