// Codes of quantised weights widened to what the dot products take; exact.
//
// A 32-bit word of codes holds one column's consecutive k: of each four the second and the third have changed places.
// So the even bytes of an e4m3 line are one line of bf16 and the odd ones the next.

// Written with the compiler's vector types: a line of codes is one register, or two.
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

inline void copy_line(const std::byte* codes, std::byte* out) { __builtin_memcpy(out, codes, kLineBytes); }

// A line of nibbles to two of bytes: the low ones, then the high ones.
inline void widen_int4(const std::byte* codes, std::byte* out) {
  for (int64_t i = 0; i < kLineBytes; i += kCodeVector) {
    const CodeBytes v = load_codes<CodeBytes>(codes + i);
    store_codes<CodeBytes>(out + i, v & 15);
    store_codes<CodeBytes>(out + kLineBytes + i, v >> 4);
  }
}

// A line of e4m3 to two of bf16: of the even bytes, then of the odd ones. NaN codes become 480: checkpoints that hold
// any are refused.
#if defined(__AVX512VBMI__)
// The bytes of the bf16 values of all magnitudes.
struct E4m3Table {
  alignas(64) uint8_t low[128], high[128];
  constexpr E4m3Table() : low(), high() {
    for (int code = 0; code < 128; ++code) {
      int exponent = code >> 3, mantissa = code & 7;
      int bits = 0;
      if (exponent > 0) {
        bits = (exponent + 120) << 7 | mantissa << 4;
      } else if (mantissa > 0) {  // mantissa * 2^-9, normalised
        exponent = 121;
        for (; mantissa < 8; mantissa *= 2) --exponent;
        bits = exponent << 7 | (mantissa & 7) << 4;
      }
      low[code] = static_cast<uint8_t>(bits);
      high[code] = static_cast<uint8_t>(bits >> 8);
    }
  }
};
inline constexpr E4m3Table kE4m3Table;

inline void widen_e4m3(__m512i codes, __m512i& even, __m512i& odd) {
  const auto looked_up = [&](const uint8_t* table) {
    return _mm512_permutex2var_epi8(_mm512_load_si512(table), codes, _mm512_load_si512(table + 64));
  };
  codes = _mm512_shuffle_epi8(
      codes, _mm512_broadcast_i32x4(_mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15)));
  const __m512i low = looked_up(kE4m3Table.low), magnitude = looked_up(kE4m3Table.high);
  // magnitude | codes & sign
  const __m512i high = _mm512_ternarylogic_epi32(magnitude, codes, _mm512_set1_epi8(-128), 0xf8);
  even = _mm512_unpacklo_epi8(low, high);
  odd = _mm512_unpackhi_epi8(low, high);
}

inline void widen_e4m3(const std::byte* codes, std::byte* out) {
  __m512i even, odd;
  widen_e4m3(_mm512_loadu_si512(codes), even, odd);
  _mm512_storeu_si512(out, even);
  _mm512_storeu_si512(out + kLineBytes, odd);
}
#else
// Words whose low seven bits are the magnitude of a code. The bias of the exponents differs by 120; where the exponent
// is zero the value is the mantissa times 2^-9: its leading bit gives the exponent, the bits behind it the mantissa.
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
