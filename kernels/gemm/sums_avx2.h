// What the portable set multiplies: the operands that four bytes of activations and a line of weights become, and sums
// of 16 columns in two AVX2 registers.
//
// There is no dot product of bf16 or of four bytes in AVX2. Widened where they are multiplied, activations would cost
// an instruction or two beside each multiply-add: they are widened once, when they are packed. A line of weights is
// widened once for all rows of a pass.
#pragma once

#include <immintrin.h>

#include "kernels/include/types.h"
#include "kernels/simd/unrolled.h"

namespace numaserve {
namespace {

inline constexpr int kMostTogether = 6;  // packed rows of a pass by a panel: 12 registers of sums
inline constexpr int kHeightStep = 1;

// Half a line, eight columns of four bytes each, or eight words of a row of activations, as operands in k order.
// bf16: fp32.
struct FloatOperands {
  static constexpr int kPerWord = 2;
  template <int i>
  static __m256i widen(__m256i words) {
    if constexpr (i == 0) return _mm256_slli_epi32(words, 16);
    return _mm256_and_si256(words, _mm256_set1_epi32(static_cast<int>(0xffff0000)));
  }
};
// Bytes with a sign: pairs of int16, the bytes with even numbers, then the others. A pair of products is summed by one
// instruction, as four of bytes are by three, one of which gives the activations the signs of the weights.
struct PairOperands {
  static constexpr int kPerWord = 2;
  template <int i>
  static __m256i widen(__m256i words) {
    return _mm256_srai_epi16(i == 0 ? _mm256_slli_epi16(words, 8) : words, 8);
  }
};
// Bytes as they are.
struct ByteOperands {
  static constexpr int kPerWord = 1;
  template <int>
  static __m256i widen(__m256i words) {
    return words;
  }
};

// A line's operand: 16 columns. Halves have names: of arrays that are indexed in a loop gcc 12 keeps some in memory.
struct Columns {
  __m256i low, high;
};
NUMASERVE_INLINE inline Columns load_line(const void* line) {
  const auto* halves = static_cast<const __m256i*>(line);
  return {_mm256_loadu_si256(halves), _mm256_loadu_si256(halves + 1)};
}
template <class Widen>
NUMASERVE_INLINE inline Columns widened(const Columns& line, Widen&& widen) {
  return {widen(line.low), widen(line.high)};
}

// Sums of 16 columns, without a default: gcc 12 begins an array with a loop, and keeps the array in memory for it. To a
// sum an activation's operand, in every lane, by those of the columns is added.
struct Fp32Sums {
  __m256 low, high;
  NUMASERVE_INLINE static Fp32Sums zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  NUMASERVE_INLINE static Fp32Sums load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  NUMASERVE_INLINE void store(float* p) const { _mm256_storeu_ps(p, low), _mm256_storeu_ps(p + 8, high); }
  NUMASERVE_INLINE void add(__m256i a, const Columns& columns) {
    low = _mm256_fmadd_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(columns.low), low);
    high = _mm256_fmadd_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(columns.high), high);
  }
};

// Additions are written out: gcc 12 takes sums of whole numbers apart, makes many products first, and has no registers
// for them.
NUMASERVE_INLINE inline void add_int32(__m256i& sum, __m256i x) { __asm__("vpaddd %1, %0, %0" : "+x"(sum) : "x"(x)); }
NUMASERVE_INLINE inline void add_int16(__m256i& sum, __m256i x) { __asm__("vpaddw %1, %0, %0" : "+x"(sum) : "x"(x)); }

struct Int32Sums {
  __m256i low, high;
  NUMASERVE_INLINE static Int32Sums set1(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
  NUMASERVE_INLINE static Int32Sums zero() { return set1(0); }
  NUMASERVE_INLINE static Int32Sums load(const int32_t* p) {
    const Columns sums = load_line(p);
    return {sums.low, sums.high};
  }
  NUMASERVE_INLINE void store(int32_t* p) const {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), low);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p) + 1, high);
  }
  NUMASERVE_INLINE void add(__m256i a, const Columns& columns) {
    add_int32(low, _mm256_madd_epi16(a, columns.low));
    add_int32(high, _mm256_madd_epi16(a, columns.high));
  }
};
// Sums in 16 bits of small codes without a sign by bytes: half of the instructions, as long as they fit.
struct Int16Sums {
  __m256i low, high;
  NUMASERVE_INLINE static Int16Sums zero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
  NUMASERVE_INLINE void add(__m256i a, const Columns& columns) {
    add_int16(low, _mm256_maddubs_epi16(columns.low, a));
    add_int16(high, _mm256_maddubs_epi16(columns.high, a));
  }
  NUMASERVE_INLINE void add_to(Int32Sums& sums) const {
    add_int32(sums.low, _mm256_madd_epi16(low, _mm256_set1_epi16(1)));
    add_int32(sums.high, _mm256_madd_epi16(high, _mm256_set1_epi16(1)));
  }
};

// What a format without groups takes.
template <class T>
struct DotOf;
template <>
struct DotOf<bf16> {
  using Operands = FloatOperands;
  using Sums = Fp32Sums;
};
template <>
struct DotOf<int8_t> {
  using Operands = PairOperands;
  using Sums = Int32Sums;
};

}  // namespace
}  // namespace numaserve
