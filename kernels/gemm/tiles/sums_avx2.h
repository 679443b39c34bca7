// The operands and sums of the portable set: operands made of four bytes of activations or of a line of weights, and
// sums of 16 columns in two AVX2 registers.
//
// AVX2 has no dot product of bf16 or of four bytes. Widening activations at each multiply-add would cost one or two
// more instructions there, so they are widened once, when they are packed. A line of weights is widened once for all
// rows of a pass.
#pragma once

#include <immintrin.h>

#include "kernels/include/types.h"
#include "kernels/simd/unrolled.h"

namespace numaserve {
namespace {

inline constexpr int kMostTogether = 6;  // packed rows of a pass by a panel: 12 registers of sums
inline constexpr int kHeightStep = 1;

// Operands, in k order, of half a line (eight columns of four bytes each) or of eight words of a row of activations.
// bf16 becomes fp32.
struct FloatOperands {
  static constexpr int kPerWord = 2;
  template <int i>
  static __m256i widen(__m256i words) {
    if constexpr (i == 0) return _mm256_slli_epi32(words, 16);
    return _mm256_and_si256(words, _mm256_set1_epi32(static_cast<int>(0xffff0000)));
  }
};
// Signed bytes as pairs of int16: first the bytes with even numbers, then the others. One instruction sums a pair of
// products. Four products of bytes would take three instructions, one of which gives activations the signs of the
// weights.
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

// A line's operand: 16 columns. The halves are named members, because gcc 12 keeps some arrays that a loop indexes in
// memory.
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

// Sums of 16 columns, without a default value: gcc 12 initialises an array by a loop, and then keeps the array in
// memory. `add` adds the product of an activation's operand, broadcast to every lane, and the columns' operands.
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

// Additions are written as assembly: gcc 12 reorders integer sums, computes many products first, and runs out of
// registers.
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
// Sums in 16 bits of small unsigned codes by bytes: half of the instructions, as long as the sums fit.
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

// The operand and sum types of a format without groups.
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
