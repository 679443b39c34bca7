// Products of the avx512 set on packed rows. A pass does one multiply-add per cycle and pipe, for two panels. It
// prefetches its weights itself, a line or two at each step: the hardware prefetcher does not keep up when a line meets
// many rows.
#pragma once

#include <immintrin.h>

#include "kernels/gemm/packed_rows.inl"
#include "kernels/gemm/tiles/sums_avx512.h"
#include "kernels/include/kernel_table.h"
#include "kernels/simd/prefetch.h"
#include "kernels/simd/transpose_avx512.h"
#include "kernels/simd/unrolled.h"

namespace numaserve {
namespace {

// Packs rows of `lines` words into [lines][kRows]; a stride in words. It stores 16 words for each of up to 15 surplus
// lines. Later packing overwrites them, or they lie at the end of `rows`, which has space for them.
template <int kRows>
inline void pack_pass(const ActivationWord* a, int64_t stride, int64_t rows, int64_t lines, ActivationWord* out) {
  for (int64_t line = 0; line < lines; line += 16) {
    __m512i v[16] = {};
    // Rows added to fill up the height repeat the last one, so that nothing is read past it.
    const auto some = static_cast<__mmask16>(lines - line < 16 ? (1 << (lines - line)) - 1 : -1);
    unrolled<kRows>(
        [&]<int r>() { v[r] = _mm512_maskz_loadu_epi32(some, a + (r < rows ? r : rows - 1) * stride + line); });
    transpose_16(v);
    unrolled<16>([&]<int i>() NUMASERVE_INLINE { _mm512_storeu_si512(out + (line + i) * kRows, v[i]); });
  }
}

// A word is an operand as it is.
template <class>
inline constexpr int kPerWord = 1;

// Packs words [begin, end) of some rows to `scratch.rows`, for passes of `most` rows; a single row is already in the
// right order.
inline void pack_words(const void* a, int64_t row_bytes, int64_t rows, Range words, int64_t most,
                       GemmScratch& scratch) {
  const auto* from = static_cast<const ActivationWord*>(a) + words.begin;
  const int64_t stride = row_bytes / static_cast<int64_t>(sizeof(ActivationWord)), lines = words.end - words.begin;
  scratch.first_word = words.begin;
  scratch.words = lines;
  const int together = rows_together(rows, most);
  scratch.together = together;
  if (together == 1) {
    scratch.packed = from;
    return;
  }
  auto* to = reinterpret_cast<ActivationWord*>(scratch.rows);
  scratch.packed = to;
  for (int64_t first = 0; first < rows; first += together)
    with_height(pass_height(rows, first, together), [&]<int kRows>() {
      pack_pass<kRows>(from + first * stride, stride, rows - first, lines, to + first * lines);
    });
}

template <class>
inline void pack_rows(const void* a, int64_t row_bytes, int64_t rows, Range words, int64_t most, GemmScratch& scratch) {
  pack_words(a, row_bytes, rows, words, most, scratch);
}

// Multiplies some tiles of two panels by the rows of a pass. `kAhead`: lines from `ahead` on that each step prefetches.
template <int kRows, int kAhead, class T, class Sum>
NUMASERVE_FLAT [[gnu::noinline]] void multiply_pass(const ActivationWord* a, const T* b, int64_t tiles, const T* ahead,
                                                    Sum* c, bool accumulate) {
  constexpr int64_t kLine = kTileN * kLineDepth<T>, kPanel = kLines * kLine;
  typename SumsOf<T>::type sums[kRows][2];
  unrolled<kRows>([&]<int r>() NUMASERVE_INLINE {
    if (accumulate) sums[r][0].load(c + r * 32), sums[r][1].load(c + r * 32 + kTileN);
  });
  for (int64_t t = 0; t < tiles; ++t) {
    if constexpr (kRows <= 4) {
      // With few rows, weights are read strictly in order, tile by tile, as fast as by a plain read loop.
      unrolled<2>([&]<int p>() NUMASERVE_INLINE {
        for (int line = 0; line < kLines; line += kSteps)
          unrolled<kSteps>([&]<int i>() NUMASERVE_INLINE {
            const __m512i columns = _mm512_loadu_si512(b + p * kPanel + (line + i) * kLine);
            unrolled<kRows>([&]<int r>() NUMASERVE_INLINE { sums[r][p].add(a[(line + i) * kRows + r], columns); });
          });
      });
    } else {
      for (int line = 0; line < kLines; line += kSteps)
        unrolled<kSteps>([&]<int i>() NUMASERVE_INLINE {
          const __m512i first = _mm512_loadu_si512(b + (line + i) * kLine);
          const __m512i second = _mm512_loadu_si512(b + kPanel + (line + i) * kLine);
          unrolled<kAhead>([&]<int j>()
                               NUMASERVE_INLINE { prefetch_first(ahead + ((line + i) * kAhead + j) * kLine); });
          unrolled<kRows>([&]<int r>() NUMASERVE_INLINE {
            sums[r][0].add(a[(line + i) * kRows + r], first);
            sums[r][1].add(a[(line + i) * kRows + r], second);
          });
        });
    }
    a += kLines * kRows;
    b += 2 * kPanel;
    ahead += kAhead * kPanel;
  }
  unrolled<kRows>([&]<int r>() NUMASERVE_INLINE {
    sums[r][0].store(c + r * 32);
    sums[r][1].store(c + r * 32 + kTileN);
  });
}

// Multiplies k tiles [first, first + count) of two panels at `b` by all rows; c is [rows][32]. `next`: the tiles needed
// after these.
template <class T, class Sum>
inline void multiply_packed(const GemmScratch& scratch, int64_t rows, int64_t first, const T* b, int64_t count,
                            const T* next, Sum* c, bool accumulate) {
  constexpr int64_t kLine = kTileN * kLineDepth<T>;
  const int together = scratch.together;
  const bool alone = rows <= together;
  int pass = 0;
  for (int64_t r = 0; r < rows; r += together, ++pass) {
    const int height = pass_height(rows, r, together);
    const ActivationWord* a = packed_pass(scratch, r, height, first * kLines);
    Sum* out = c + r * 32;
    with_height(height, [&]<int kRows>() {
      if constexpr (kRows <= 4)
        multiply_pass<kRows, 0>(a, b, count, b, out, accumulate);
      else if (alone)
        multiply_pass<kRows, 2>(a, b, count, b + kAheadBytes / kLineBytes * kLine, out, accumulate);
      else if (pass < 2)  // each of the two prefetches half of the next block
        multiply_pass<kRows, 1>(a, b, count, next + pass * count * kLines * kLine, out, accumulate);
      else
        multiply_pass<kRows, 0>(a, b, count, next, out, accumulate);
    });
  }
}

}  // namespace
}  // namespace numaserve
