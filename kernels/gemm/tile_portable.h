// The GEMM micro-tile of the portable set: two AVX2 registers a line of a tile.
#pragma once

#include <immintrin.h>

#include "kernels/include/types.h"
#include "kernels/simd/prefetch.h"

namespace numaserve {
namespace {

inline constexpr int kActivationOffset = 0;
inline constexpr int kCodeOffset = 128;  // taken off unsigned codes, see CodeDot
// Weights alone: activations are a stream beside them.
inline constexpr FirstLevelUse kFirstLevelUse = {.quarters = 2, .tile_bytes = 2 * kTileBytes, .other_bytes = 0};
inline constexpr bool kPacksTiles = false;
inline constexpr int kKvRowsInRegisters = 0;
inline constexpr bool kPacksRows = false;
template <class>
inline constexpr int64_t kRowsInRegisters = 0;
template <class>
inline int64_t rows_in_registers(int64_t) {
  return 0;
}

// How four bytes of activations meet eight columns of a line: bf16 widened to fp32, or int8 summed in int32.
struct Bf16Dot {
  __m256 even, odd;  // of the activations
  explicit Bf16Dot(int bits)
      : even(_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_set1_epi32(bits), 16))),
        odd(_mm256_castsi256_ps(_mm256_and_si256(_mm256_set1_epi32(bits), odd_mask()))) {}
  struct Columns {
    __m256 even, odd;
    explicit Columns(__m256i raw)
        : even(_mm256_castsi256_ps(_mm256_slli_epi32(raw, 16))),
          odd(_mm256_castsi256_ps(_mm256_and_si256(raw, odd_mask()))) {}
  };
  __m256i operator()(__m256i sum, const Columns& columns) const {
    const __m256 first = _mm256_fmadd_ps(even, columns.even, _mm256_castsi256_ps(sum));
    return _mm256_castps_si256(_mm256_fmadd_ps(odd, columns.odd, first));
  }
  static __m256i odd_mask() { return _mm256_set1_epi32(static_cast<int>(0xffff0000)); }
};
struct Int8Dot {
  __m256i activations;
  explicit Int8Dot(int bits) : activations(_mm256_set1_epi32(bits)) {}
  struct Columns {
    __m256i raw, magnitudes;
    explicit Columns(__m256i values) : raw(values), magnitudes(_mm256_abs_epi8(values)) {}
  };
  // |b|, up to 128 without a sign, times a with the sign of b. a is never -128, so that two products fit 16 bits.
  __m256i operator()(__m256i sum, const Columns& columns) const {
    const __m256i pairs = _mm256_maddubs_epi16(columns.magnitudes, _mm256_sign_epi8(activations, columns.raw));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
};
// Unsigned codes: 128 less, so that two products fit 16 bits here too.
struct CodeDot : Int8Dot {
  using Int8Dot::Int8Dot;
  struct Columns : Int8Dot::Columns {
    explicit Columns(__m256i codes) : Int8Dot::Columns(_mm256_xor_si256(codes, _mm256_set1_epi8(-128))) {}
  };
};
template <class T>
struct DotOf;
template <>
struct DotOf<bf16> {
  using type = Bf16Dot;
};
template <>
struct DotOf<int8_t> {
  using type = Int8Dot;
};
template <>
struct DotOf<uint8_t> {
  using type = CodeDot;
};

// c[rows, panels * 16] (+)= a[rows, k] · B, where b(kt) is the tile of the first panel for k-tile kt and each further
// panel's lies `panel_stride` elements on; `panels` is even. bf16 is summed in fp32: each element is one chain of fused
// multiply-adds in k order, whatever `rows` is, which is what makes a row's bits independent of its batch. int8 is
// summed in int32, exactly. `rows` is what `rows_at_once` says of the rows that are left of those that this thread has
// named to `tile_begin`, for this product or before it; rows beyond them are neither read nor written.
// A tile has `kUsed` lines, which `tile_begin` was told too.
template <int kUsed, int kRows, int kPanels, class T, class TileAt, class Sum>
inline void portable_rows(const T* a, int64_t lda, TileAt b, int64_t panel_stride, int64_t k_tiles, Sum* c, int64_t ldc,
                          bool accumulate) {
  using Dot = typename DotOf<T>::type;
  constexpr int kHalves = 2 * kPanels;  // registers of 8 columns
  constexpr int kHalfLine = 8 * kLineDepth<T>;
  __m256i acc[kRows][kHalves];
  const auto at = [&](int r, int h) { return reinterpret_cast<__m256i*>(c + r * ldc + 8 * h); };
  for (int r = 0; r < kRows; ++r)
    for (int h = 0; h < kHalves; ++h) acc[r][h] = accumulate ? _mm256_loadu_si256(at(r, h)) : _mm256_setzero_si256();
  for (int64_t kt = 0; kt < k_tiles; ++kt) {
    for (int p = 0; p < kPanels; ++p) {
      const T* tile = b(kt) + p * panel_stride;
      for (int line = 0; line < kUsed; ++line) {
        const auto columns = [&](int h) {
          const T* half = tile + (2 * line + h) * kHalfLine;
          return typename Dot::Columns(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(half)));
        };
        const typename Dot::Columns low = columns(0), high = columns(1);
        for (int r = 0; r < kRows; ++r) {
          int bits;
          __builtin_memcpy(&bits, a + r * lda + (kt * kUsed + line) * kLineDepth<T>, sizeof(bits));
          const Dot dot(bits);
          acc[r][2 * p] = dot(acc[r][2 * p], low);
          acc[r][2 * p + 1] = dot(acc[r][2 * p + 1], high);
        }
      }
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int h = 0; h < kHalves; ++h) _mm256_storeu_si256(at(r, h), acc[r][h]);
}

// Four rows by one panel fill the registers. One row takes two panels, whose tiles lie side by side in memory.
template <int kUsed = kLines, class T, class TileAt, class Sum>
inline void tile_gemm(const T* a, int64_t lda, TileAt b, int64_t panel_stride, int panels, int64_t k_tiles, Sum* c,
                      int64_t ldc, int rows, bool accumulate) {
  for (int p = 0; p < panels; p += 2) {
    const auto tile = [&](int64_t kt) { return b(kt) + p * panel_stride; };
    const auto second = [&](int64_t kt) { return b(kt) + (p + 1) * panel_stride; };
    Sum* out = c + p * kTileN;
    int r = 0;
    for (; r + 4 <= rows; r += 4) {
      portable_rows<kUsed, 4, 1>(a + r * lda, lda, tile, 0, k_tiles, out + r * ldc, ldc, accumulate);
      portable_rows<kUsed, 4, 1>(a + r * lda, lda, second, 0, k_tiles, out + r * ldc + kTileN, ldc, accumulate);
    }
    for (; r < rows; ++r)
      portable_rows<kUsed, 1, 2>(a + r * lda, lda, tile, panel_stride, k_tiles, out + r * ldc, ldc, accumulate);
  }
}

inline void tile_begin(int64_t, int = kLines) {}
inline int rows_at_once(int64_t left) { return static_cast<int>(left < 32 ? left : 32); }

// As many multiply-adds as the processor can do, for measuring what that is; returns how many operations it did.
template <class T>
inline int64_t tile_peak(int64_t rounds) {
  using Dot = typename DotOf<T>::type;
  __m256i acc[8];
  for (__m256i& a : acc) a = _mm256_setzero_si256();
  const Dot dot(0x3f803f80);
  __m256i x = _mm256_set1_epi32(0x3f803f80);
  for (int64_t i = 0; i < rounds; ++i) {
    const typename Dot::Columns columns(x);
    for (__m256i& a : acc) a = dot(a, columns);
    __asm__ volatile("" : "+x"(x));
  }
  for (const __m256i& a : acc) __asm__ volatile("" ::"x"(a));
  return rounds * 8 * 2 * 8 * kLineDepth<T>;
}

}  // namespace
}  // namespace numaserve
