// Sixteen fp32 lanes: one zmm register on AVX-512, two ymm registers on the portable set.
//
// Every operation that is not a GEMM tile is written once, in terms of this type. Like all code that is compiled once
// for each instruction set (see isa/), it lies in an anonymous namespace and is included nowhere else. A shared inline
// function would be a weak symbol, and the linker could pick the zmm copy for the portable path.
#pragma once

#include <immintrin.h>

#include "kernels/include/types.h"

namespace numaserve {
namespace {

struct F32x16 {
#if defined(__AVX512F__)
  __m512 v;
  static F32x16 zero() { return {_mm512_setzero_ps()}; }
  static F32x16 set1(float x) { return {_mm512_set1_ps(x)}; }
  static F32x16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static F32x16 load(const bf16* p) {
    const __m256i raw = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(raw), 16))};
  }
  // Loads the first `count` lanes, none if it is not positive; the others are zero.
  static F32x16 load_head(const float* p, int count) { return {_mm512_maskz_loadu_ps(head_mask(count), p)}; }
  void store(float* p) const { _mm512_storeu_ps(p, v); }
  void store(bf16* p) const { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), rounded()); }
  // Rounds to nearest even, to the bits of the portable set. VCVTNEPS2BF16 flushes subnormals and keeps the payload of
  // a NaN: a vector that has either is rounded in integer arithmetic. Measured with AMX: with integers alone, products
  // with bf16 results reached 0.91-0.97 of the speed.
  __m256i rounded() const {
#if defined(__AVX512BF16__)
    constexpr int kSubnormalOrNan = 0x20 | 0x01 | 0x80;
    if (__builtin_expect(_mm512_fpclass_ps_mask(v, kSubnormalOrNan) == 0, 1))
      return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(v));
#endif
    return rounded_as_integers();
  }
  __m256i rounded_as_integers() const {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __m512i kept =
        _mm512_mask_blend_epi32(_mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), rounded, _mm512_set1_epi32(0x7fc00000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(kept, 16));
  }
  void store_head(float* p, int count) const { _mm512_mask_storeu_ps(p, head_mask(count), v); }
  // Stores integers in [-127, 127] plus `offset`, rounded to nearest even.
  void store_int8(int8_t* p, int offset) const {
    const __m512i whole = _mm512_add_epi32(_mm512_cvtps_epi32(v), _mm512_set1_epi32(offset));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(whole));
  }
  // The same, with the second and third of each four exchanged.
  void store_int8_exchanged(int8_t* p) const {
    const __m128i bytes = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm_shuffle_epi8(bytes, exchanged()));
  }
  static F32x16 load_half(const uint16_t* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
  }
  // Returns 2^(e - 127) for exponents e of one byte; the smallest power is below the exponents of fp32, and a
  // subnormal.
  static F32x16 load_powers(const uint8_t* p) {
    const __m512i bits =
        _mm512_slli_epi32(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 23);
    return {_mm512_castsi512_ps(_mm512_max_epi32(bits, _mm512_set1_epi32(1 << 22)))};
  }
  // Converts p, minus `minus` unless that is null.
  static F32x16 convert(const int32_t* p, const int32_t* minus) {
    __m512i whole = _mm512_loadu_si512(p);
    if (minus != nullptr) whole = _mm512_sub_epi32(whole, _mm512_loadu_si512(minus));
    return {_mm512_cvtepi32_ps(whole)};
  }
  F32x16 operator+(F32x16 o) const { return {_mm512_add_ps(v, o.v)}; }
  F32x16 operator-(F32x16 o) const { return {_mm512_sub_ps(v, o.v)}; }
  F32x16 operator*(F32x16 o) const { return {_mm512_mul_ps(v, o.v)}; }
  F32x16 operator/(F32x16 o) const { return {_mm512_div_ps(v, o.v)}; }
  static F32x16 fma(F32x16 a, F32x16 b, F32x16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
  static F32x16 max(F32x16 a, F32x16 b) { return {_mm512_max_ps(a.v, b.v)}; }
  static F32x16 min(F32x16 a, F32x16 b) { return {_mm512_min_ps(a.v, b.v)}; }
  F32x16 sqrt() const { return {_mm512_sqrt_ps(v)}; }
  // Returns the larger of `peak`, a magnitude, and the magnitude of x. They are compared as integers, of which NaN is
  // the largest: a maximum in fp32 would lose a NaN at the next x.
  static F32x16 larger_magnitude(F32x16 peak, F32x16 x) {
    const __m512i magnitude = _mm512_and_si512(_mm512_castps_si512(x.v), _mm512_set1_epi32(0x7fffffff));
    return {_mm512_castsi512_ps(_mm512_max_epi32(_mm512_castps_si512(peak.v), magnitude))};
  }
  F32x16 round() const { return {_mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
  // 2^v for integral v in [-126, 127].
  F32x16 exp2_integral() const {
    const __m512i e = _mm512_add_epi32(_mm512_cvtps_epi32(v), _mm512_set1_epi32(127));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(e, 23))};
  }
  // Returns v minus the integer below it; 0 for minus infinity.
  F32x16 fraction() const { return {_mm512_reduce_ps(v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)}; }
  // Returns v times 2 to the integer below `y`; zero below -96, which keeps scaled results above subnormals, which are
  // slow.
  F32x16 times_exp2_floor(F32x16 y) const {
    return {_mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(y.v, _mm512_set1_ps(-96.0f), _CMP_NLT_UQ), v, y.v)};
  }
  // Returns the nearest bf16 of non-negative lanes. Ties go up rather than to even: one instruction instead of four,
  // and a tie is one of 65536 values.
  F32x16 nearest_bf16() const {
    const __m512i bits = _mm512_add_epi32(_mm512_castps_si512(v), _mm512_set1_epi32(0x8000));
    return F32x16{_mm512_castsi512_ps(bits)}.truncated_bf16();
  }
  // Returns the nearest bf16 towards zero of each lane.
  F32x16 truncated_bf16() const {
    const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000));
    return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(v), high))};
  }
  // Stores the lanes of two vectors as bf16, truncated, by two word permutations. The instruction that narrows 32 bits
  // to 16 takes two operations for each vector, and VCVTNE2PS2BF16 takes four.
  static void store_truncated(F32x16 first, F32x16 second, bf16* p) {
    alignas(64) static constexpr uint16_t kHighWords[32] = {1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
                                                            1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31};
    const __m512i words = _mm512_load_si512(kHighWords);
    const __m512i low = _mm512_permutexvar_epi16(words, _mm512_castps_si512(first.v));
    _mm512_storeu_si512(p, _mm512_mask_permutexvar_epi16(low, 0xffff0000, words, _mm512_castps_si512(second.v)));
  }
  // Selects this where `x` lies in [low, high), and `otherwise` elsewhere.
  F32x16 where_in(F32x16 x, float low, float high, F32x16 otherwise) const {
    const __mmask16 in = _mm512_cmp_ps_mask(x.v, _mm512_set1_ps(low), _CMP_GE_OQ) &
                         _mm512_cmp_ps_mask(x.v, _mm512_set1_ps(high), _CMP_LT_OQ);
    return {_mm512_mask_blend_ps(in, otherwise.v, v)};
  }

 private:
  static __mmask16 head_mask(int count) {
    return static_cast<__mmask16>(count >= 16 ? 0xffff : count <= 0 ? 0 : (1u << count) - 1);
  }

 public:
#else
  __m256 lo, hi;
  static F32x16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static F32x16 set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static F32x16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static F32x16 load(const bf16* p) { return {widen(p), widen(p + 8)}; }
  static F32x16 load_head(const float* p, int count) {
    return {_mm256_maskload_ps(p, head_mask(count)), _mm256_maskload_ps(p + 8, head_mask(count - 8))};
  }
  void store(float* p) const {
    _mm256_storeu_ps(p, lo);
    _mm256_storeu_ps(p + 8, hi);
  }
  void store(bf16* p) const {
    const __m256i packed = _mm256_packus_epi32(narrow(lo), narrow(hi));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xd8));
  }
  void store_head(float* p, int count) const {
    _mm256_maskstore_ps(p, head_mask(count), lo);
    _mm256_maskstore_ps(p + 8, head_mask(count - 8), hi);
  }
  void store_int8(int8_t* p, int offset) const {
    const __m256i shift = _mm256_set1_epi32(offset), low = _mm256_add_epi32(_mm256_cvtps_epi32(lo), shift);
    const __m256i packed = _mm256_packs_epi32(low, _mm256_add_epi32(_mm256_cvtps_epi32(hi), shift));
    const __m256i ordered = _mm256_permute4x64_epi64(packed, 0xd8);
    const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
  }
  void store_int8_exchanged(int8_t* p) const {
    store_int8(p, 0);
    auto* bytes = reinterpret_cast<__m128i*>(p);
    _mm_storeu_si128(bytes, _mm_shuffle_epi8(_mm_loadu_si128(bytes), exchanged()));
  }
  static F32x16 load_half(const uint16_t* p) {
    const auto* halves = reinterpret_cast<const __m128i*>(p);
    return {_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves + 1))};
  }
  static F32x16 load_powers(const uint8_t* p) { return {powers_half(p), powers_half(p + 8)}; }
  static F32x16 convert(const int32_t* p, const int32_t* minus) {
    return {convert_half(p, minus), convert_half(p + 8, minus == nullptr ? nullptr : minus + 8)};
  }
  F32x16 operator+(F32x16 o) const { return {_mm256_add_ps(lo, o.lo), _mm256_add_ps(hi, o.hi)}; }
  F32x16 operator-(F32x16 o) const { return {_mm256_sub_ps(lo, o.lo), _mm256_sub_ps(hi, o.hi)}; }
  F32x16 operator*(F32x16 o) const { return {_mm256_mul_ps(lo, o.lo), _mm256_mul_ps(hi, o.hi)}; }
  F32x16 operator/(F32x16 o) const { return {_mm256_div_ps(lo, o.lo), _mm256_div_ps(hi, o.hi)}; }
  static F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
    return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
  }
  static F32x16 max(F32x16 a, F32x16 b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
  static F32x16 min(F32x16 a, F32x16 b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
  F32x16 sqrt() const { return {_mm256_sqrt_ps(lo), _mm256_sqrt_ps(hi)}; }
  static F32x16 larger_magnitude(F32x16 peak, F32x16 x) {
    return {larger_half(peak.lo, x.lo), larger_half(peak.hi, x.hi)};
  }
  F32x16 round() const {
    constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(lo, kNearest), _mm256_round_ps(hi, kNearest)};
  }
  F32x16 exp2_integral() const { return {exp2_half(lo), exp2_half(hi)}; }
  F32x16 fraction() const {
    const F32x16 x = max(set1(-127.0f), *this);  // NaN stays: the second operand
    return x - x.floor();
  }
  F32x16 times_exp2_floor(F32x16 y) const {  // 2^-127 is a zero exponent: zero
    return *this * max(y, set1(-127.0f)).floor().exp2_integral();
  }
  F32x16 nearest_bf16() const { return {nearest_half(lo), nearest_half(hi)}; }
  F32x16 truncated_bf16() const { return {truncated_half(lo), truncated_half(hi)}; }
  static void store_truncated(F32x16 first, F32x16 second, bf16* p) {
    first.store_high_words(p);
    second.store_high_words(p + 16);
  }
  F32x16 where_in(F32x16 x, float low, float high, F32x16 otherwise) const {
    return {blend_half(x.lo, low, high, otherwise.lo, lo), blend_half(x.hi, low, high, otherwise.hi, hi)};
  }

 private:
  static __m256 larger_half(__m256 peak, __m256 x) {
    const __m256i magnitude = _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fffffff));
    return _mm256_castsi256_ps(_mm256_max_epi32(_mm256_castps_si256(peak), magnitude));
  }
  static __m256i head_mask(int count) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static __m256 convert_half(const int32_t* p, const int32_t* minus) {
    __m256i whole = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    if (minus != nullptr) whole = _mm256_sub_epi32(whole, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(minus)));
    return _mm256_cvtepi32_ps(whole);
  }
  static __m256 powers_half(const uint8_t* p) {
    const __m256i bits =
        _mm256_slli_epi32(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))), 23);
    return _mm256_castsi256_ps(_mm256_max_epi32(bits, _mm256_set1_epi32(1 << 22)));
  }
  static __m256 widen(const bf16* p) {
    const __m128i raw = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(raw), 16));
  }
  static __m256i narrow(__m256 x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc00000), nan), 16);
  }
  F32x16 floor() const { return {_mm256_floor_ps(lo), _mm256_floor_ps(hi)}; }
  static __m256 truncated_half(__m256 x) {
    return _mm256_and_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(0xffff0000))));
  }
  static __m256 nearest_half(__m256 x) {
    const __m256i bits = _mm256_add_epi32(_mm256_castps_si256(x), _mm256_set1_epi32(0x8000));
    return truncated_half(_mm256_castsi256_ps(bits));
  }
  void store_high_words(bf16* p) const {
    const __m256i packed = _mm256_packus_epi32(_mm256_srli_epi32(_mm256_castps_si256(lo), 16),
                                               _mm256_srli_epi32(_mm256_castps_si256(hi), 16));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xd8));
  }
  static __m256 exp2_half(__m256 x) {
    const __m256i e = _mm256_add_epi32(_mm256_cvtps_epi32(x), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(e, 23));
  }
  static __m256 blend_half(__m256 x, float low, float high, __m256 otherwise, __m256 value) {
    const __m256 in = _mm256_and_ps(_mm256_cmp_ps(x, _mm256_set1_ps(low), _CMP_GE_OQ),
                                    _mm256_cmp_ps(x, _mm256_set1_ps(high), _CMP_LT_OQ));
    return _mm256_blendv_ps(otherwise, value, in);
  }

 public:
#endif

  static __m128i exchanged() { return _mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15); }

  // Combines lanes as a binary tree: the order is fixed, and the same on every instruction set.
  float sum() const {
    alignas(64) float x[16];
    store(x);
    for (int width = 8; width > 0; width /= 2)
      for (int i = 0; i < width; ++i) x[i] += x[i + width];
    return x[0];
  }
  // The order changes neither the largest lane nor the sum of integers below 2^24.
#if defined(__AVX512F__)
  float max_lane() const { return _mm512_reduce_max_ps(v); }
  float max_magnitude() const {  // of lanes that are magnitudes; NaN is the largest
    return __builtin_bit_cast(float, _mm512_reduce_max_epi32(_mm512_castps_si512(v)));
  }
  float whole_sum() const { return _mm512_reduce_add_ps(v); }
#else
  float max_lane() const {
    alignas(64) float x[16];
    store(x);
    for (int width = 8; width > 0; width /= 2)
      for (int i = 0; i < width; ++i) x[i] = x[i] > x[i + width] ? x[i] : x[i + width];
    return x[0];
  }
  float max_magnitude() const {
    alignas(32) int32_t x[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(x),
                       _mm256_max_epi32(_mm256_castps_si256(lo), _mm256_castps_si256(hi)));
    for (int width = 4; width > 0; width /= 2)
      for (int i = 0; i < width; ++i) x[i] = x[i] > x[i + width] ? x[i] : x[i + width];
    return __builtin_bit_cast(float, x[0]);
  }
  float whole_sum() const { return sum(); }
#endif
};

inline bool is_finite(float x) { return x - x == 0.0f; }

}  // namespace
}  // namespace numaserve
