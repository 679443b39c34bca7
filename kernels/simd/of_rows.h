// Largest lanes and sums of lanes of sixteen rows at once: with a single row, each of four steps would wait for the
// last.
#pragma once

#include "kernels/simd/f32x16.h"

namespace numaserve {
namespace {

#if defined(__AVX512F__)
// Lane i of the result combines the lanes of rows[i], in a fixed order.
template <class Combine>
inline F32x16 of_rows(const F32x16* rows, Combine combine) {
  __m512 four[4];  // lane i of each 128 bits is of row 4 * g + i
  for (int g = 0; g < 4; ++g) {
    const auto pair = [&](int i) {
      const __m512 a = rows[4 * g + i].v, b = rows[4 * g + i + 1].v;
      return _mm512_castps_pd(combine(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)));
    };
    const __m512d a = pair(0), b = pair(2);
    four[g] = combine(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
  }
  const auto halves = [&](__m512 a, __m512 b) {
    return combine(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
  };
  const __m512 low = halves(four[0], four[1]), high = halves(four[2], four[3]);
  return {combine(_mm512_shuffle_f32x4(low, high, 0x88), _mm512_shuffle_f32x4(low, high, 0xdd))};
}
inline F32x16 max_of_rows(const F32x16* rows) {
  return of_rows(rows, [](__m512 a, __m512 b) { return _mm512_max_ps(a, b); });
}
inline F32x16 sum_of_rows(const F32x16* rows) {
  return of_rows(rows, [](__m512 a, __m512 b) { return _mm512_add_ps(a, b); });
}
#else
template <class Reduce>
inline F32x16 of_rows(const F32x16* rows, Reduce reduce) {
  alignas(64) float x[16];
  for (int r = 0; r < 16; ++r) x[r] = reduce(rows[r]);
  return F32x16::load(x);
}
inline F32x16 max_of_rows(const F32x16* rows) {
  return of_rows(rows, [](F32x16 x) { return x.max_lane(); });
}
inline F32x16 sum_of_rows(const F32x16* rows) {
  return of_rows(rows, [](F32x16 x) { return x.sum(); });
}
#endif

}  // namespace
}  // namespace numaserve
