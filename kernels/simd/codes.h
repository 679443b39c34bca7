// Codes of quantised weights widened to what the dot products take; exact.
//
// A 32-bit word of codes holds one column's consecutive k: of each four the second and the third have changed places.
// So the even bytes of an e4m3 line are one line of bf16 and the odd ones the next; nibbles, in the same way, would be
// four lines of bf16.

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

// The values of an e4m3 code's lowest three bits where its exponent is zero: bits times 2^-9. `bits` is below 8.
inline CodeWords e4m3_subnormal(CodeWords bits) {
#if defined(__AVX512BW__)
  alignas(64) static const uint16_t kValues[32] = {0x0000, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60};
  return reinterpret_cast<CodeWords>(
      _mm512_permutexvar_epi16(reinterpret_cast<__m512i>(bits), _mm512_load_si512(kValues)));
#else
  // bits * 2^-9 has the leading bit of `bits` as its exponent and the bits behind it as its mantissa.
  const CodeWords from_four = 0x3c00 + ((bits & 3) << 5), from_two = 0x3b80 + ((bits & 1) << 6);
  return bits >= 4 ? from_four : bits >= 2 ? from_two : bits * 0x3b00;
#endif
}

// Words whose low seven bits are the magnitude of an e4m3 code, to bf16. The bias of the exponents differs by 120.
inline CodeWords e4m3_magnitude(CodeWords code) {
  const CodeWords normal = (code << 4) + 0x3c00;
  const CodeWords tiny = code < 8;
  return tiny ? e4m3_subnormal(code) : normal;
}

// A line of e4m3 to two of bf16. NaN codes become 480: checkpoints that hold any are refused.
inline void widen_e4m3(const std::byte* codes, std::byte* out) {
  for (int64_t i = 0; i < kLineBytes; i += kCodeVector) {
    const CodeWords v = load_codes<CodeWords>(codes + i);
    store_codes<CodeWords>(out + i, e4m3_magnitude(v & 0x7f) | ((v & 0x80) << 8));
    store_codes<CodeWords>(out + kLineBytes + i, e4m3_magnitude((v >> 8) & 0x7f) | (v & 0x8000));
  }
}
