// The tiles of values of latents, made from the tiles of keys. See latent_attention.inl.
#pragma once

#include <immintrin.h>

#include "kernels/include/kernel_table.h"

namespace numaserve {
namespace {

inline constexpr int kBlockPages = kAttentionBlock / kPageTokens;

// Makes half of the lines of two tiles of values, with 16 dimensions each, from the tile of keys with their 32
// dimensions of 16 tokens. Groups of four words, two dimensions of two tokens, stay together. Their words are
// reordered, and the groups are transposed as 64 bits, 8 by 8 (pairs of dimensions by pairs of tokens).
inline void turn_tile(const bf16* keys, bf16* values) {
  constexpr int64_t kLine = kTileN * kLineDepth<bf16>;
  for (int half = 0; half < 2; ++half) {
    const bf16* lines = keys + half * (kLines / 2) * kLine;
    bf16* out = values + half * kTileElements;
#if defined(__AVX512F__)
    const __m512i exchange = _mm512_set4_epi32(0x0f0e0b0a, 0x0d0c0908, 0x07060302, 0x05040100);
    for (int column = 0; column < 4; ++column) {
      // 128 bits of every second line: loads with inserts leave the shuffle port to operations that need it.
      const auto gather = [&](int first) {
        const auto at = [&](int i) {
          return _mm_loadu_si128(reinterpret_cast<const __m128i*>(lines + (first + 2 * i) * kLine) + column);
        };
        __m512i v = _mm512_castsi128_si512(at(0));
        v = _mm512_inserti64x2(v, at(1), 1);
        v = _mm512_inserti64x2(v, at(2), 2);
        return _mm512_inserti64x2(v, at(3), 3);
      };
      const __m512i even = gather(0), odd = gather(1);
      bf16* to = out + 2 * column * kLine;
      _mm512_storeu_si512(to, _mm512_shuffle_epi8(_mm512_unpacklo_epi64(even, odd), exchange));
      _mm512_storeu_si512(to + kLine, _mm512_shuffle_epi8(_mm512_unpackhi_epi64(even, odd), exchange));
    }
#else
    for (int i = 0; i < kLines / 2; ++i)
      for (int j = 0; j < kLines / 2; ++j) {
        uint64_t words;
        __builtin_memcpy(&words, lines + i * kLine + 4 * j, sizeof(words));
        words = (words & 0xffff00000000ffff) | (words >> 16 & 0xffff0000) | (words << 16 & 0xffff00000000);
        __builtin_memcpy(out + j * kLine + 4 * i, &words, sizeof(words));
      }
#endif
  }
}

inline const bf16* latent_page(const AttentionArgs& a, int32_t page) {
  return reinterpret_cast<const bf16*>(a.kv.k + page * a.kv.page_stride);
}

// The tiles of values of a block.
inline void turn_values(const AttentionArgs& a, const int32_t* table, int32_t pages, bf16* v) {
  for (int32_t page = 0; page < pages; ++page) {
    const bf16* keys = latent_page(a, table[page]);
    for (int32_t half = 0; half < 2; ++half)
      for (int32_t t = 0; t < a.value_dim / kTileK; ++t) {
        bf16* tiles = v + (t * kBlockPages + page) * 2 * kTileElements;
        turn_tile(keys + (half * a.head_tiles + t) * kTileElements, tiles + half * kTileElements / 2);
      }
  }
}

}  // namespace
}  // namespace numaserve
