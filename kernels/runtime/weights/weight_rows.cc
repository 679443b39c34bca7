#include "kernels/runtime/weights/weight_rows.h"

#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <stdexcept>
#include <string>

// Inlines into functions of either kind: row decoding is compiled for AVX2 and for the baseline, on which the reference
// backend packs. Set on single functions only: if the whole file were compiled so, inline functions of the standard
// library in it could become the copies that baseline code calls.
#define NUMASERVE_AVX2 __attribute__((target("avx2")))
#define NUMASERVE_INLINE __attribute__((always_inline)) inline

namespace numaserve {
namespace {

struct Format {
  std::string_view name;
  SourceBlock block;
};

constexpr int64_t kBlock = kSourceBlock;
constexpr Format kFormats[] = {{"bf16", {1, 2}},       {"f16", {1, 2}},        {"f32", {1, 4}},
                               {"q8_0", {kBlock, 34}}, {"q4_0", {kBlock, 18}}, {"q4_1", {kBlock, 20}}};

NUMASERVE_INLINE bf16 to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;  // as integers: float comparisons prevent vectorisation
  return static_cast<bf16>(is_nan ? 0x7fc0 : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

template <class T>
NUMASERVE_INLINE T read(const uint8_t* p) {
  T value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}

// Branch-free, so that loops over it are vectorised. The product is exact, for subnormals too; infinities and NaNs only
// lack the remaining exponent bits.
NUMASERVE_INLINE float widened_half(uint16_t value) {
  const uint32_t magnitude = static_cast<uint32_t>(value & 0x7fff) << 13;
  const uint32_t finite = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);
  const uint32_t sign = static_cast<uint32_t>(value & 0x8000) << 16, other = value % 0x8000 >= 0x7c00 ? 0x7f800000 : 0;
  return std::bit_cast<float>(sign | finite | other);
}

NUMASERVE_INLINE float half_to_float(const uint8_t* p) { return widened_half(read<uint16_t>(p)); }

NUMASERVE_INLINE void decode_block(SourceType type, const uint8_t* p, bf16* out) {
  const float scale = half_to_float(p);
  if (type == SourceType::kQ8_0) {
    for (int i = 0; i < kBlock; ++i) out[i] = to_bf16(scale * static_cast<float>(static_cast<int8_t>(p[2 + i])));
    return;
  }
  const bool has_minimum = type == SourceType::kQ4_1;
  const float minimum = has_minimum ? half_to_float(p + 2) : 0.0f;
  const uint8_t* nibbles = p + (has_minimum ? 4 : 2);
  const int zero = has_minimum ? 0 : 8;
  bf16 values[16];
  for (int q = 0; q < 16; ++q) values[q] = to_bf16(scale * static_cast<float>(q - zero) + minimum);
  for (int i = 0; i < kBlock / 2; ++i) {
    out[i] = values[nibbles[i] & 15];
    out[i + kBlock / 2] = values[nibbles[i] >> 4];
  }
}

float widened(bf16 value) { return std::bit_cast<float>(static_cast<uint32_t>(value) << 16); }

constexpr float kE4m3Largest = 448.0f;

// Rounds to nearest, ties to even; `value` is at most 448 in magnitude.
uint8_t to_e4m3(float value) {
  const float magnitude = std::fabs(value);
  // Below 2^-6 the steps are 2^-9, as in the binade above.
  const int exponent = std::max(std::ilogb(std::max(magnitude, 0x1p-6f)), -6);
  const auto steps = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 3 - exponent)));
  // Steps of 8 to 16; 16 carries into the exponent by itself, and steps below 8 have no exponent.
  const int code = steps < 8 ? steps : (exponent + 7) * 8 + steps - 8;
  return static_cast<uint8_t>(std::min(code, 0x7e) | (std::signbit(value) ? 0x80 : 0));
}

// The value of the largest magnitude, with its sign.
float extreme(const bf16* values, int64_t count) {
  float found = 0.0f;
  for (int64_t i = 0; i < count; ++i)
    if (std::fabs(widened(values[i])) > std::fabs(found)) found = widened(values[i]);
  return found;
}

NUMASERVE_INLINE void decode(SourceType type, const uint8_t* row, int64_t first, int64_t count, bf16* out) {
  switch (type) {
    case SourceType::kBf16:
      std::memcpy(out, row + 2 * first, static_cast<size_t>(count) * 2);
      return;
    case SourceType::kF16:
      for (int64_t i = 0; i < count; ++i) out[i] = to_bf16(half_to_float(row + 2 * (first + i)));
      return;
    case SourceType::kF32:
      for (int64_t i = 0; i < count; ++i) out[i] = to_bf16(read<float>(row + 4 * (first + i)));
      return;
    default:
      for (int64_t i = 0; i < count; i += kBlock)
        decode_block(type, row + (first + i) / kBlock * source_block(type).bytes, out + i);
  }
}

NUMASERVE_AVX2 void decode_with_avx2(SourceType type, const uint8_t* row, int64_t first, int64_t count, bf16* out) {
  decode(type, row, first, count, out);
}

}  // namespace

SourceType source_type(std::string_view name) {
  for (size_t i = 0; i < std::size(kFormats); ++i)
    if (kFormats[i].name == name) return static_cast<SourceType>(i);
  throw std::invalid_argument("pack: unknown source format '" + std::string(name) + "'");
}

SourceBlock source_block(SourceType type) { return kFormats[static_cast<int>(type)].block; }

void decode_row(SourceType type, const uint8_t* row, int64_t first, int64_t count, bf16* out) {
  if (__builtin_cpu_supports("avx2")) return decode_with_avx2(type, row, first, count, out);
  decode(type, row, first, count, out);
}

bool keeps_codes(SourceType type, WeightFormat format, Offsets offsets) {
  switch (type) {
    case SourceType::kQ8_0:
      return format == WeightFormat::kInt8Group && offsets == Offsets::kNone;
    case SourceType::kQ4_0:
      return format == WeightFormat::kInt4 && offsets == Offsets::kNone;
    case SourceType::kQ4_1:
      return format == WeightFormat::kInt4 && offsets == Offsets::kMinima;
    default:
      return false;
  }
}

bool decode_codes(SourceType type, const uint8_t* row, int64_t first, int64_t count, uint8_t* codes, float* scales,
                  float* minima) {
  const int64_t block_bytes = source_block(type).bytes, header = type == SourceType::kQ4_1 ? 4 : 2;
  bool finite = true;
  for (int64_t i = 0; i < count; i += kBlock, codes += kBlock) {
    const uint8_t* block = row + (first + i) / kBlock * block_bytes;
    scales[i / kBlock] = half_to_float(block);
    finite = finite && std::isfinite(scales[i / kBlock]);
    if (type == SourceType::kQ4_1) {
      minima[i / kBlock] = half_to_float(block + 2);
      finite = finite && std::isfinite(minima[i / kBlock]);
    }
    for (int j = 0; j < kBlock; ++j) {
      const uint8_t byte = block[header + (type == SourceType::kQ8_0 ? j : j % (kBlock / 2))];
      codes[j] = type == SourceType::kQ8_0 ? byte ^ 0x80 : j < kBlock / 2 ? byte & 15 : byte >> 4;
    }
  }
  return finite;
}

QuantizedRow quantize_row(const bf16* row, int64_t count, int8_t* out) {
  const auto load = [row](int64_t i) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + i)); };
  const __m128i zero = _mm_setzero_si128(), magnitude = _mm_set1_epi16(0x7fff);
  __m128i peaks = zero;
  for (int64_t i = 0; i < count; i += 8) peaks = _mm_max_epi16(peaks, _mm_and_si128(load(i), magnitude));
  bf16 lanes[8];
  _mm_storeu_si128(reinterpret_cast<__m128i*>(lanes), peaks);
  const float peak = widened(*std::max_element(lanes, lanes + 8));
  const __m128 factor = _mm_set1_ps(peak > 0.0f ? 127.0f / peak : 0.0f);
  const auto rounded = [factor](__m128i wide) { return _mm_cvtps_epi32(_mm_mul_ps(_mm_castsi128_ps(wide), factor)); };
  __m128i sums = zero;
  for (int64_t i = 0; i < count; i += 8) {
    const __m128i low = rounded(_mm_unpacklo_epi16(zero, load(i))), high = rounded(_mm_unpackhi_epi16(zero, load(i)));
    sums = _mm_add_epi32(sums, _mm_add_epi32(low, high));
    const __m128i words = _mm_packs_epi32(low, high);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(out + i), _mm_packs_epi16(words, words));
  }
  int32_t parts[4];
  _mm_storeu_si128(reinterpret_cast<__m128i*>(parts), sums);
  return {peak / 127.0f, parts[0] + parts[1] + parts[2] + parts[3]};
}

void quantize_groups(WeightFormat format, const bf16* row, int64_t count, int64_t group, uint8_t* codes,
                     float* scales) {
  for (int64_t first = 0; first < count; first += group) {
    const float peak = extreme(row + first, group);
    float& scale = scales[first / group];
    scale = format == WeightFormat::kInt4  ? peak / -8.0f
            : format == WeightFormat::kFp8 ? std::fabs(peak) / kE4m3Largest
                                           : std::fabs(peak) / 127.0f;
    if (format != WeightFormat::kFp8) scale = from_half(to_half(scale));
    const float factor = scale != 0.0f ? 1.0f / scale : 0.0f;
    for (int64_t i = first; i < first + group; ++i) {
      const float value = widened(row[i]) * factor;
      if (format == WeightFormat::kFp8) {
        codes[i] = to_e4m3(std::clamp(value, -kE4m3Largest, kE4m3Largest));
        continue;
      }
      const int zero = format == WeightFormat::kInt4 ? 8 : 128;
      codes[i] = static_cast<uint8_t>(std::clamp(static_cast<int>(std::nearbyint(value)) + zero, 0, 2 * zero - 1));
    }
  }
}

float e4m3_value(uint8_t code) {
  const int exponent = (code >> 3) & 15, mantissa = code & 7;
  if (exponent == 15 && mantissa == 7) return std::nanf("");
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                        : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

float e2m1_value(uint8_t code) {
  const int exponent = (code >> 1) & 3, mantissa = code & 1;
  const float magnitude =
      exponent == 0 ? 0.5f * static_cast<float>(mantissa) : std::ldexp(static_cast<float>(2 + mantissa), exponent - 2);
  return (code & 8) != 0 ? -magnitude : magnitude;
}

uint16_t to_half(float value) {
  const float magnitude = std::fabs(value);
  const uint32_t bits = std::bit_cast<uint32_t>(magnitude), sign = std::bit_cast<uint32_t>(value) >> 16 & 0x8000;
  if (magnitude != magnitude) return static_cast<uint16_t>(sign | 0x7e00);
  if (magnitude >= 0x1.ffep15f) return static_cast<uint16_t>(sign | 0x7c00);  // nearer to 2^16 than to the largest half
  // Below 2^-14 the steps are 2^-24, and 1024 of them carry into the exponent.
  if (magnitude < 0x1p-14f)
    return static_cast<uint16_t>(sign | static_cast<uint32_t>(std::nearbyint(magnitude * 0x1p24f)));
  return static_cast<uint16_t>(sign | (bits + 0xfff + (bits >> 13 & 1) - (112u << 23)) >> 13);
}

float from_half(uint16_t value) { return widened_half(value); }

namespace {
constexpr int kExchanged[] = {0, 2, 1, 3};
}

void arrange_codes(WeightFormat format, const uint8_t* codes, int64_t count, uint8_t* out) {
  if (code_bits(format) == 4) {
    for (int64_t i = 0; i < count; i += 8)
      for (int j = 0; j < 4; ++j)
        *out++ = static_cast<uint8_t>(codes[i + kExchanged[j]] | codes[i + 4 + kExchanged[j]] << 4);
    return;
  }
  for (int64_t i = 0; i < count; i += 4)
    for (const int j : kExchanged) *out++ = codes[i + j];
}

uint8_t arranged_code(WeightFormat format, const uint8_t* bytes, int64_t index) {
  if (code_bits(format) == 4) return bytes[index / 8 * 4 + kExchanged[index % 4]] >> (index % 8 < 4 ? 0 : 4) & 15;
  return bytes[index / 4 * 4 + kExchanged[index % 4]];
}

}  // namespace numaserve
