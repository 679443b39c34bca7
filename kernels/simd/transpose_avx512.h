// Transposes of words in registers of AVX-512.
#pragma once

#include <immintrin.h>

namespace numaserve {
namespace {

// Transposes 16 rows of 16 words.
inline void transpose_16(__m512i (&v)[16]) {
  __m512i w[16];
  for (int i = 0; i < 16; i += 2) {
    w[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
    w[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
  }
  for (int i = 0; i < 16; i += 4)
    for (int j = 0; j < 2; ++j) {
      v[i + 2 * j] = _mm512_unpacklo_epi64(w[i + j], w[i + j + 2]);
      v[i + 2 * j + 1] = _mm512_unpackhi_epi64(w[i + j], w[i + j + 2]);
    }
  for (int i = 0; i < 4; ++i) {
    w[i] = _mm512_shuffle_i32x4(v[i], v[i + 4], 0x88);
    w[i + 4] = _mm512_shuffle_i32x4(v[i], v[i + 4], 0xdd);
    w[i + 8] = _mm512_shuffle_i32x4(v[i + 8], v[i + 12], 0x88);
    w[i + 12] = _mm512_shuffle_i32x4(v[i + 8], v[i + 12], 0xdd);
  }
  for (int i = 0; i < 8; ++i) {
    v[i] = _mm512_shuffle_i32x4(w[i], w[i + 8], 0x88);
    v[i + 8] = _mm512_shuffle_i32x4(w[i], w[i + 8], 0xdd);
  }
}

}  // namespace
}  // namespace numaserve
