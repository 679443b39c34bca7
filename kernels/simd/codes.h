// Codes of quantized weights, widened exactly to the operands of dot products.
//
// A 32-bit word of codes holds one column's consecutive k; in each four, the second and third are exchanged. The even
// bytes of an e4m3 line are therefore one line of bf16, and the odd bytes the next.
#pragma once

#include <immintrin.h>

#include "kernels/include/types.h"
#include "kernels/simd/f32x16.h"

namespace numaserve {
namespace {

// Uses the compiler's vector types: a line of codes is one register, or two.
#if defined(__AVX512BW__)
inline constexpr int64_t kCodeVector = 64;
#else
inline constexpr int64_t kCodeVector = 32;
#endif
typedef uint8_t CodeBytes __attribute__((vector_size(kCodeVector)));
typedef uint16_t CodeWords __attribute__((vector_size(kCodeVector)));

template <class V>
inline V load_codes(const std::byte* p) {
  V v;
  __builtin_memcpy(&v, p, sizeof(v));
  return v;
}
template <class V>
inline void store_codes(std::byte* p, V v) {
  __builtin_memcpy(p, &v, sizeof(v));
}

// Twice the value of an e2m1 code: a sign, two bits of exponent, one of mantissa.
constexpr int twice_e2m1(int code) {
  const int magnitude = code & 7, exponent = magnitude >> 1;
  const int twice = exponent == 0 ? magnitude : (2 + (magnitude & 1)) << (exponent - 1);
  return code < 8 ? twice : -twice;
}

// A byte for each code of 4 bits.
struct NibbleBytes {
  alignas(16) uint8_t value[16];
  template <class ByteOf>
  constexpr explicit NibbleBytes(ByteOf byte_of) : value() {
    for (int code = 0; code < 16; ++code) value[code] = static_cast<uint8_t>(byte_of(code));
  }
  __m128i load() const { return _mm_load_si128(reinterpret_cast<const __m128i*>(value)); }
#if defined(__AVX512BW__)
  CodeBytes of(CodeBytes nibbles) const {
    const __m512i table = _mm512_broadcast_i32x4(load());
    return reinterpret_cast<CodeBytes>(_mm512_shuffle_epi8(table, reinterpret_cast<__m512i>(nibbles)));
  }
#endif
};

// With the zero that dot products with unsigned codes need.
inline constexpr int kE2m1Zero = 16;
inline constexpr NibbleBytes kE2m1Bytes([](int code) { return twice_e2m1(code) + kE2m1Zero; });

inline constexpr int kIq4Zero = 128;
inline constexpr NibbleBytes kIq4Bytes([](int code) { return kIq4[code] + kIq4Zero; });

inline constexpr int kIq3Zero = 64, kIq2Zero = 48;
inline constexpr NibbleBytes kIq3Bytes([](int code) { return kIq3[code] + kIq3Zero; });
inline constexpr NibbleBytes kIq2Bytes([](int code) { return kIq2[code] + kIq2Zero; });

// Returns the bits of an integer of at most eight binary digits in bf16, which holds it exactly.
constexpr uint16_t bf16_bits(int value) {
  const int magnitude = value < 0 ? -value : value;
  if (magnitude == 0) return 0;
  int exponent = 0;
  while (magnitude >> (exponent + 1) != 0) ++exponent;
  const int mantissa = magnitude << (7 - exponent) & 0x7f;
  return static_cast<uint16_t>((value < 0 ? 0x8000 : 0) | (exponent + 127) << 7 | mantissa);
}

inline constexpr int kE4m3Bits = static_cast<int>(0x87f00000);  // the place of a sign and a magnitude in fp32

#if defined(__AVX512VBMI__)
// Returns the values of 16 codes of e4m3 that are numbers. The exponent bias is 7 instead of 127; a subnormal code is a
// subnormal number until that is corrected.
inline F32x16 e4m3_numbers(const uint8_t* p) {
  const __m512i wide = _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m512i bits = _mm512_and_si512(_mm512_slli_epi32(wide, 20), _mm512_set1_epi32(kE4m3Bits));
  return {_mm512_mul_ps(_mm512_castsi512_ps(bits), _mm512_set1_ps(0x1p120f))};
}

inline void copy_line(const std::byte* codes, std::byte* out) { __builtin_memcpy(out, codes, kLineBytes); }

// Widens a line of nibbles to two of bytes: the low ones, then the high ones, converted by `byte_of`.
template <class ByteOf>
inline void widen_nibbles(const std::byte* codes, std::byte* out, ByteOf&& byte_of) {
  for (int64_t i = 0; i < kLineBytes; i += kCodeVector) {
    const CodeBytes v = load_codes<CodeBytes>(codes + i);
    store_codes<CodeBytes>(out + i, byte_of(v & 15));
    store_codes<CodeBytes>(out + kLineBytes + i, byte_of(v >> 4));
  }
}

inline void widen_int4(const std::byte* codes, std::byte* out) {
  widen_nibbles(codes, out, [](CodeBytes nibbles) { return nibbles; });
}

inline void widen_by(const NibbleBytes& table, const std::byte* codes, std::byte* out) {
  widen_nibbles(codes, out, [&table](CodeBytes nibbles) { return table.of(nibbles); });
}

// Widening to lines of bf16: a line of nibbles, by a table, to four; a line of bytes minus 128 to two; a line of e4m3
// to two. NaN codes become 480: checkpoints that contain NaN are refused.
//
// The bytes of the bf16 values of all magnitudes, for codes of a sign and a magnitude.
struct MagnitudeTable {
  alignas(64) uint8_t low[128], high[128];
  template <class BitsOf>
  constexpr explicit MagnitudeTable(BitsOf bits_of) : low(), high() {
    for (int magnitude = 0; magnitude < 128; ++magnitude) {
      const int bits = bits_of(magnitude);
      low[magnitude] = static_cast<uint8_t>(bits);
      high[magnitude] = static_cast<uint8_t>(bits >> 8);
    }
  }
};

// Sorts the bytes of each 128 bits: even-numbered bytes first.
inline __m512i evens_first(__m512i bytes) {
  return _mm512_shuffle_epi8(
      bytes, _mm512_broadcast_i32x4(_mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15)));
}

// Widens a line of one-byte codes, sign first, whose magnitudes `magnitude_of` gives.
template <class MagnitudeOf>
inline void widen_bytes(const MagnitudeTable& table, MagnitudeOf magnitude_of, __m512i codes, __m512i& even,
                        __m512i& odd) {
  codes = evens_first(codes);
  const __m512i index = magnitude_of(codes);
  const auto looked_up = [index](const uint8_t* bytes) {
    return _mm512_permutex2var_epi8(_mm512_load_si512(bytes), index, _mm512_load_si512(bytes + 64));
  };
  const __m512i low = looked_up(table.low), magnitude = looked_up(table.high);
  // magnitude | codes & sign
  const __m512i high = _mm512_ternarylogic_epi32(magnitude, codes, _mm512_set1_epi8(-128), 0xf8);
  even = _mm512_unpacklo_epi8(low, high);
  odd = _mm512_unpackhi_epi8(low, high);
}

// The values of codes of 4 bits: integers, times a power of two.
struct NibbleTable {
  alignas(64) uint16_t value[32];
  template <class WholeOf>
  constexpr explicit NibbleTable(WholeOf whole_of, int exponent = 0) : value() {
    for (int i = 0; i < 32; ++i) {
      const int whole = whole_of(i % 16), times = whole != 0 ? exponent * (1 << 7) : 0;
      value[i] = static_cast<uint16_t>(bf16_bits(whole) + times);
    }
  }
};

// Only the lowest five bits of a word select, and the table holds everything twice, so no masking is needed.
inline void widen_nibble_values(const NibbleTable& values, __m512i codes, __m512i (&out)[4]) {
  const __m512i table = _mm512_load_si512(values.value);
  out[0] = _mm512_permutexvar_epi16(codes, table);
  // Not a shift, which runs once per cycle, on an execution unit that the other operations and the look-ups share.
  const __m512i high = _mm512_shuffle_epi8(
      codes, _mm512_broadcast_i32x4(_mm_setr_epi8(1, 1, 3, 3, 5, 5, 7, 7, 9, 9, 11, 11, 13, 13, 15, 15)));
  out[1] = _mm512_permutexvar_epi16(high, table);
  out[2] = _mm512_permutexvar_epi16(_mm512_srli_epi16(codes, 4), table);
  out[3] = _mm512_permutexvar_epi16(_mm512_srli_epi16(codes, 12), table);
}

inline void widen_nibble_values(const NibbleTable& values, const std::byte* codes, std::byte* out) {
  __m512i lines[4];
  widen_nibble_values(values, _mm512_loadu_si512(codes), lines);
  for (int i = 0; i < 4; ++i) _mm512_storeu_si512(out + i * kLineBytes, lines[i]);
}

// Multiplies pairs of bf16 by the scales of their 16 columns. bf16 must hold the products exactly.
inline void scale_values(__m512 scales, __m512i (&pairs)[4]) {
  const __m512i odd = _mm512_set1_epi32(static_cast<int>(0xffff0000));
  for (__m512i& pair : pairs) {
    const __m512 first = _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(pair, 16)), scales);
    const __m512 second = _mm512_mul_ps(_mm512_castsi512_ps(_mm512_and_si512(pair, odd)), scales);
    pair = _mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(first), 16), _mm512_castps_si512(second));
  }
}

// Magnitudes of codes minus 128 by the codes' own magnitude as signed bytes: 128 minus code, or 128 minus (256 minus
// code). Only the lowest seven bits of code 128 count, and they equal those of code 0, so code 128 is zeroed
// separately.
inline constexpr MagnitudeTable kInt8Values([](int index) { return bf16_bits(128 - index); });

inline void widen_int8_values(__m512i codes, __m512i& even, __m512i& odd) {
  codes = evens_first(codes);
  const __m512i index = _mm512_abs_epi8(codes), top = _mm512_set1_epi8(-128);
  const __mmask64 some = _mm512_cmpneq_epi8_mask(codes, top);
  const auto looked_up = [index, some](const uint8_t* bytes) {
    return _mm512_maskz_permutex2var_epi8(some, _mm512_load_si512(bytes), index, _mm512_load_si512(bytes + 64));
  };
  const __m512i low = looked_up(kInt8Values.low), magnitude = looked_up(kInt8Values.high);
  // magnitude | ~codes & sign
  const __m512i high = _mm512_ternarylogic_epi32(magnitude, codes, top, 0xf2);
  even = _mm512_unpacklo_epi8(low, high);
  odd = _mm512_unpackhi_epi8(low, high);
}

inline void widen_int8_values(const std::byte* codes, std::byte* out) {
  __m512i even, odd;
  widen_int8_values(_mm512_loadu_si512(codes), even, odd);
  _mm512_storeu_si512(out, even);
  _mm512_storeu_si512(out + kLineBytes, odd);
}

// Magnitudes are multiples of 2^-9; from 8 on, the steps double at every eighth.
inline constexpr MagnitudeTable kE4m3([](int code) {
  if (code == 0) return 0;
  return code < 8 ? bf16_bits(code) - (9 << 7) : bf16_bits(8 + code % 8) + (code / 8 - 10) * 128;
});

inline void widen_e4m3(__m512i codes, __m512i& even, __m512i& odd) {
  widen_bytes(kE4m3, [](__m512i v) { return v; }, codes, even, odd);  // the sign's bit does not count in an index
}

inline void widen_e4m3(const std::byte* codes, std::byte* out) {
  __m512i even, odd;
  widen_e4m3(_mm512_loadu_si512(codes), even, odd);
  _mm512_storeu_si512(out, even);
  _mm512_storeu_si512(out + kLineBytes, odd);
}
#else
inline F32x16 e4m3_numbers(const uint8_t* p) {
  const auto half = [](const uint8_t* codes) {
    const __m256i wide = _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes)));
    const __m256i bits = _mm256_and_si256(_mm256_slli_epi32(wide, 20), _mm256_set1_epi32(kE4m3Bits));
    return _mm256_mul_ps(_mm256_castsi256_ps(bits), _mm256_set1_ps(0x1p120f));
  };
  return {half(p), half(p + 8)};
}

struct NibbleTable {
  static constexpr int kByteZero = 128;
  NibbleBytes bytes;  // the integers plus that zero
  bool halved;
  template <class WholeOf>
  constexpr explicit NibbleTable(WholeOf whole_of, int exponent = 0)
      : bytes([whole_of](int code) { return whole_of(code) + kByteZero; }), halved(exponent == -1) {}
};

// Widening to lines of bf16, as above. Returns words of bf16 for words whose low seven bits are the magnitude of a
// code. The exponent biases differ by 120. Where the exponent is zero, the value is the mantissa times 2^-9: its
// leading bit gives the exponent, the lower bits the mantissa.
inline CodeWords e4m3_magnitude(CodeWords code) {
  const CodeWords normal = (code << 4) + 0x3c00;
  const CodeWords from_four = 0x3c00 + ((code & 3) << 5), from_two = 0x3b80 + ((code & 1) << 6);
  return code >= 8 ? normal : code >= 4 ? from_four : code >= 2 ? from_two : code * 0x3b00;
}

inline void widen_e4m3(const std::byte* codes, std::byte* out) {
  for (int64_t i = 0; i < kLineBytes; i += kCodeVector) {
    const CodeWords v = load_codes<CodeWords>(codes + i);
    store_codes<CodeWords>(out + i, e4m3_magnitude(v & 0x7f) | ((v & 0x80) << 8));
    store_codes<CodeWords>(out + kLineBytes + i, e4m3_magnitude((v >> 8) & 0x7f) | (v & 0x8000));
  }
}
#endif

inline constexpr NibbleTable kInt4Values([](int code) { return code - 8; });
inline constexpr NibbleTable kInt4Codes([](int code) { return code; });
inline constexpr NibbleTable kE2m1Values(twice_e2m1, -1), kE2m1Twice(twice_e2m1);
inline constexpr NibbleTable kIq4Values([](int code) { return kIq4[code]; });
inline constexpr NibbleTable kIq3Values([](int code) { return kIq3[code]; });
inline constexpr NibbleTable kIq2Values([](int code) { return kIq2[code]; });

}  // namespace
}  // namespace numaserve
