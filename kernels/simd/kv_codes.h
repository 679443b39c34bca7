// The contents of the KV cache: bf16, or codes of one byte; see KvLayer. Operations on the cache are written once, with
// `Bf16Codes`, `Int8Codes` or `E4m3Codes` as a parameter.
#pragma once

#include <immintrin.h>

#include "kernels/include/kv_layer.h"
#include "kernels/simd/codes.h"
#include "kernels/simd/f32x16.h"

namespace numaserve {
namespace {

typedef int32_t CodeInts __attribute__((vector_size(kCodeVector)));
typedef uint32_t CodeFloatBits __attribute__((vector_size(kCodeVector)));
typedef float CodeFloats __attribute__((vector_size(kCodeVector)));
typedef uint8_t CodeQuarter __attribute__((vector_size(kCodeVector / 4)));

struct Bf16Codes {
  static constexpr KvDtype kDtype = KvDtype::kBf16;
  static constexpr bool kScaled = false;
};

struct Int8Codes {
  static constexpr KvDtype kDtype = KvDtype::kInt8;
  static constexpr bool kScaled = true;
  static constexpr float kMost = 127.0f;

  // Encodes sixteen values of a magnitude of at most 127.5, rounded to nearest even.
  static void encode(F32x16 x, uint8_t* out) { x.store_int8(reinterpret_cast<int8_t*>(out), 0); }

  // Widens a line to two of bf16. Integers below 2^8 are exact in bf16.
#if defined(__AVX512VBMI__)
  static void widen(__m512i codes, __m512i& even, __m512i& odd) {
    static constexpr MagnitudeTable kWhole([](int magnitude) { return bf16_bits(magnitude); });
    widen_bytes(kWhole, [](__m512i v) { return _mm512_abs_epi8(v); }, codes, even, odd);
  }
  static void widen(const std::byte* codes, std::byte* out) {
    __m512i even, odd;
    widen(_mm512_loadu_si512(codes), even, odd);
    _mm512_storeu_si512(out, even);
    _mm512_storeu_si512(out + kLineBytes, odd);
  }
};
#else
  static void widen(const std::byte* codes, std::byte* out) {
    for (int64_t i = 0; i < kLineBytes; i += kCodeVector) {
      const CodeInts v = load_codes<CodeInts>(codes + i);
      store_codes(out + i, pair(v << 24, v << 8));
      store_codes(out + kLineBytes + i, pair(v << 16, v));
    }
  }

 private:
  // Returns the highest bytes, as bf16: `low` in the lower half of each word.
  static CodeFloatBits pair(CodeInts low, CodeInts high) { return (value(low) >> 16) | value(high); }
  static CodeFloatBits value(CodeInts v) {
    return reinterpret_cast<CodeFloatBits>(__builtin_convertvector(v >> 24, CodeFloats));
  }
};
#endif

// Micikevicius et al., FP8 Formats for Deep Learning, 2022. Infinity and NaN are never written: the scale carries them.
struct E4m3Codes {
  static constexpr KvDtype kDtype = KvDtype::kFp8E4m3;
  static constexpr bool kScaled = true;
  static constexpr float kMost = 448.0f;

  // Encodes sixteen values, rounded to nearest even, clamped to 448.
  static void encode(F32x16 x, uint8_t* out) {
    alignas(64) float values[16];
    x.store(values);
    constexpr int64_t kStep = kCodeVector / static_cast<int64_t>(sizeof(float));
    for (int64_t i = 0; i < 16; i += kStep) {
      const CodeQuarter codes = __builtin_convertvector(
          code(load_codes<CodeFloatBits>(reinterpret_cast<const std::byte*>(values + i))), CodeQuarter);
      __builtin_memcpy(out + i, &codes, sizeof(codes));
    }
  }

#if defined(__AVX512VBMI__)
  static void widen(__m512i codes, __m512i& even, __m512i& odd) { widen_e4m3(codes, even, odd); }
#endif
  static void widen(const std::byte* codes, std::byte* out) { widen_e4m3(codes, out); }

 private:
  static CodeFloatBits code(CodeFloatBits bits) {
    const CodeFloatBits magnitude = bits & 0x7fffffff;
    const CodeFloatBits normal = ((magnitude + 0x7ffff + ((magnitude >> 20) & 1)) >> 20) - (120 << 3);
    // Below 2^-6 codes are multiples of 2^-9, the value of the last bit of 2^14 in fp32.
    const CodeFloats sum = reinterpret_cast<CodeFloats>(magnitude) + 0x1p14f;
    const CodeFloatBits tiny = reinterpret_cast<CodeFloatBits>(sum) - 0x46800000;
    const CodeFloatBits rounded = magnitude < 0x3c800000 ? tiny : normal;
    return (rounded < 0x7e ? rounded : 0x7e) | (bits >> 24 & 0x80);
  }
};

// The smallest scale. Even a token of zeros has it, so that 1 / scale and its product with a probability are ordinary
// numbers.
inline constexpr float kSmallestKvScale = 0x1p-64f;

// Returns the scale, as it is stored, of a token whose largest magnitude is `peak`. Rounding the scale may make codes
// 1/256 larger than kMost; they are rounded to kMost.
template <class Codes>
inline bf16 kv_scale(float peak) {
  const float scale = peak / Codes::kMost;
  alignas(64) bf16 rounded[16];
  F32x16::set1(scale < kSmallestKvScale ? kSmallestKvScale : scale).store(rounded);
  return rounded[0];
}

inline float widened(bf16 x) { return __builtin_bit_cast(float, static_cast<uint32_t>(x) << 16); }

// Calls body with the codes of a dtype.
template <class Body>
inline void with_codes(KvDtype dtype, Body body) {
  switch (dtype) {
    case KvDtype::kBf16:
      return body(Bf16Codes{});
    case KvDtype::kInt8:
      return body(Int8Codes{});
    case KvDtype::kFp8E4m3:
      return body(E4m3Codes{});
  }
}

}  // namespace
}  // namespace numaserve
