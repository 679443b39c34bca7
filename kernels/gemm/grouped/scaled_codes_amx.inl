// Codes of grouped weights that are widened to bf16 with their scales, exactly. See scaled_amx.inl.
#pragma once

#include <immintrin.h>

#include "kernels/gemm/grouped/group_codes.inl"
#include "kernels/simd/codes.h"
#include "kernels/simd/unrolled.h"

namespace numaserve {
namespace {

// Widens two lines of codes of each panel of a pair, which have 16 of k, to half a tile of each.
template <class Scale>
NUMASERVE_INLINE inline void widen_half_tiles(const NibbleTable& values, const std::byte* codes, std::byte* out,
                                              Scale&& scale) {
  unrolled<4>([&]<int i>() NUMASERVE_INLINE {
    constexpr int half = i % 2;
    std::byte* to = out + half * kTileBytes + i / 2 * 4 * kLineBytes;
    __m512i lines[4];
    widen_nibble_values(values, _mm512_loadu_si512(codes + i * kLineBytes), lines);
    scale.template operator()<half>(lines);
    unrolled<4>([&]<int line>() NUMASERVE_INLINE { _mm512_storeu_si512(to + line * kLineBytes, lines[line]); });
  });
}

NUMASERVE_INLINE inline void widen_half_tiles(Nvfp4GroupValues, const GroupLayout& layout, const std::byte* record,
                                              int64_t line, std::byte* out) {
  const F32x16 scales[2] = {e4m3_numbers(line_scales(layout, record, line, 0)),
                            e4m3_numbers(line_scales(layout, record, line, 1))};
  widen_half_tiles(Nvfp4GroupValues::kTable, record + 2 * line * kLineBytes, out,
                   [&]<int half>(__m512i(&lines)[4]) NUMASERVE_INLINE { scale_values(scales[half].v, lines); });
}

// Values of e2m1 times this power of two have the highest exponents of bf16.
inline constexpr int kLifted = 125;
inline constexpr NibbleTable kE2m1Lifted(twice_e2m1, kLifted - 1);

// The numbers of the columns of words in a line of tiles.
struct ColumnWords {
  alignas(64) uint16_t of[32];
  constexpr ColumnWords() : of() {
    for (int i = 0; i < 32; ++i) of[i] = static_cast<uint16_t>(i / 2);
  }
};
inline constexpr ColumnWords kColumnWords;

// The exponents of values are lowered from the highest ones, with saturation, so that zero remains zero.
NUMASERVE_INLINE inline void widen_half_tiles(Mxfp4GroupValues, const GroupLayout& layout, const std::byte* record,
                                              int64_t line, std::byte* out) {
  const __m512i exponents =
      _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(record + layout.scales)));
  const __m512i steps = _mm512_slli_epi16(_mm512_sub_epi16(_mm512_set1_epi16(kLifted + 127), exponents), 7);
  const __mmask32 least = _mm512_cmplt_epi16_mask(exponents, _mm512_set1_epi16(2));  // below kLeastTilePower
  const __m512i all = _mm512_mask_mov_epi16(steps, least, _mm512_set1_epi16(-1));
  const __m512i first = _mm512_load_si512(kColumnWords.of);
  const __m512i lowered[2] = {_mm512_permutexvar_epi16(first, all),
                              _mm512_permutexvar_epi16(_mm512_add_epi16(first, _mm512_set1_epi16(kTileN)), all)};
  widen_half_tiles(kE2m1Lifted, record + 2 * line * kLineBytes, out,
                   [&]<int half>(__m512i(&lines)[4]) NUMASERVE_INLINE {
                     for (__m512i& each : lines) each = _mm512_subs_epu16(each, lowered[half]);
                   });
}

}  // namespace
}  // namespace numaserve
