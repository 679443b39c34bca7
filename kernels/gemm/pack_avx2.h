// Packing of a pass's activations in the portable set.
#pragma once

#include <immintrin.h>

#include "kernels/gemm/tiles/sums_avx2.h"
#include "kernels/include/types.h"
#include "kernels/simd/unrolled.h"

namespace numaserve {
namespace {

// Transposes 8 rows of 8 words.
inline void transpose_8(__m256i (&v)[8]) {
  __m256i w[8];
  unrolled<4>([&]<int i>() NUMASERVE_INLINE {
    w[2 * i] = _mm256_unpacklo_epi32(v[2 * i], v[2 * i + 1]);
    w[2 * i + 1] = _mm256_unpackhi_epi32(v[2 * i], v[2 * i + 1]);
  });
  unrolled<4>([&]<int i>() NUMASERVE_INLINE {
    constexpr int from = i / 2 * 4 + i % 2, to = i / 2 * 4 + i % 2 * 2;
    v[to] = _mm256_unpacklo_epi64(w[from], w[from + 2]);
    v[to + 1] = _mm256_unpackhi_epi64(w[from], w[from + 2]);
  });
  unrolled<4>([&]<int i>() NUMASERVE_INLINE {
    w[i] = _mm256_permute2x128_si256(v[i], v[i + 4], 0x20);
    w[i + 4] = _mm256_permute2x128_si256(v[i], v[i + 4], 0x31);
  });
  unrolled<8>([&]<int i>() NUMASERVE_INLINE { v[i] = w[i]; });
}

// Packs rows of `lines` words, a multiple of 8, into operands [lines][kPerWord][kRows]; a stride in words. It stores up
// to 7 words too many, which the next operands overwrite.
template <class Operands, int kRows>
NUMASERVE_FLAT inline void pack_pass(const ActivationWord* a, int64_t stride, int64_t lines, ActivationWord* out) {
  constexpr int kPer = Operands::kPerWord;
  for (int64_t line = 0; line < lines; line += 8) {
    __m256i words[8];
    unrolled<8>([&]<int r>() NUMASERVE_INLINE {
      words[r] = r < kRows ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(a + r * stride + line))
                           : _mm256_setzero_si256();
    });
    transpose_8(words);
    unrolled<8>([&]<int word>() NUMASERVE_INLINE {
      unrolled<kPer>([&]<int i>() NUMASERVE_INLINE {
        auto* to = reinterpret_cast<__m256i*>(out + ((line + word) * kPer + i) * kRows);
        _mm256_storeu_si256(to, Operands::template widen<i>(words[word]));
      });
    });
  }
}

}  // namespace
}  // namespace numaserve
