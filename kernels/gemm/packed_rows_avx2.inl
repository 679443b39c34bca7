// Products of the portable set on packed rows, whose activations are widened while they are packed (sums_avx2.h).
//
// Six rows by one panel fill the sixteen registers: twelve sums, a line's operand and an activation. With one or two
// rows, a pass takes both panels of a pair side by side, so that there are enough chains of sums. With more rows, it
// alternates between a few tiles of one panel and of the other, with the resting sums in the first level.
#pragma once

#include <immintrin.h>

#include "kernels/gemm/pack_avx2.h"
#include "kernels/gemm/packed_rows.inl"
#include "kernels/gemm/tiles/sums_avx2.h"
#include "kernels/include/kernel_table.h"
#include "kernels/simd/prefetch.h"
#include "kernels/simd/unrolled.h"

namespace numaserve {
namespace {

// The number of panels that a pass takes at once, and the k tiles of one panel between switches when memory is
// streamed.
template <int kRows>
inline constexpr int kPanelsTogether = kRows <= 2 ? 2 : 1;
inline constexpr int64_t kStreamedTiles = 4;

// The operands that a word of activations becomes, for weights of a type or for codes of groups.
template <class T>
struct OperandsOf {
  using type = typename DotOf<T>::Operands;
};
template <class Weights>
inline constexpr int kPerWord = OperandsOf<Weights>::type::kPerWord;

// Packs words [begin, end) of some rows to `scratch.rows`, for passes of `most` rows.
template <class Weights>
inline void pack_rows(const void* a, int64_t row_bytes, int64_t rows, Range words, int64_t most, GemmScratch& scratch) {
  const auto* from = static_cast<const ActivationWord*>(a) + words.begin;
  const int64_t stride = row_bytes / static_cast<int64_t>(sizeof(ActivationWord)), lines = words.end - words.begin;
  auto* to = reinterpret_cast<ActivationWord*>(scratch.rows);
  scratch.first_word = words.begin;
  scratch.words = lines;
  scratch.together = rows_together(rows, most);
  scratch.packed = to;
  for (int64_t first = 0; first < rows; first += scratch.together)
    with_height(pass_height(rows, first, scratch.together), [&]<int kRows>() {
      pack_pass<typename OperandsOf<Weights>::type, kRows>(from + first * stride, stride, lines,
                                                           to + first * lines * kPerWord<Weights>);
    });
}

// Multiplies some tiles, of one panel of a pair or of both, by the rows of a pass. `kAhead`: each line prefetches one,
// from `ahead` on.
template <int kRows, bool kAhead, class T, class Sum>
NUMASERVE_FLAT [[gnu::noinline]] void multiply_pass(const ActivationWord* a, const T* b, int64_t tiles, const T* ahead,
                                                    Sum* c, bool accumulate) {
  using Operands = typename DotOf<T>::Operands;
  constexpr int kPanels = kPanelsTogether<kRows>, kPer = Operands::kPerWord;
  constexpr int64_t kLine = kTileN * kLineDepth<T>, kTile = kLines * kLine;
  using Sums = typename DotOf<T>::Sums;
  Sums sums[kRows * kPanels];
  unrolled<kRows * kPanels>([&]<int i>() NUMASERVE_INLINE {
    sums[i] = accumulate ? Sums::load(c + i / kPanels * 32 + i % kPanels * kTileN) : Sums::zero();
  });
  for (int64_t t = 0; t < tiles; ++t) {
    for (int line = 0; line < kLines; line += kSteps)
      unrolled<kSteps * kPanels>([&]<int i>() NUMASERVE_INLINE {
        constexpr int step = i / kPanels, p = i % kPanels;
        const Columns raw = load_line(b + p * kTile + (line + step) * kLine);
        if constexpr (kAhead) prefetch_first(ahead + ((line + step) * kPanels + p) * kLine);
        unrolled<kPer>([&]<int o>() NUMASERVE_INLINE {
          const Columns columns = widened(raw, [](__m256i x) { return Operands::template widen<o>(x); });
          unrolled<kRows>([&]<int r>() NUMASERVE_INLINE {
            sums[r * kPanels + p].add(_mm256_set1_epi32(a[((line + step) * kPer + o) * kRows + r]), columns);
          });
        });
      });
    a += kLines * kPer * kRows;
    b += 2 * kTile;
    ahead += kPanels * kTile;
  }
  unrolled<kRows * kPanels>([&]<int i>()
                                NUMASERVE_INLINE { sums[i].store(c + i / kPanels * 32 + i % kPanels * kTileN); });
}

// Multiplies k tiles [first, first + count) of two panels at `b` by all rows; c is [rows][32]. `next`: the tiles needed
// after these.
template <class T, class Sum>
inline void multiply_packed(const GemmScratch& scratch, int64_t rows, int64_t first, const T* b, int64_t count,
                            const T* next, Sum* c, bool accumulate) {
  constexpr int kPer = kPerWord<T>;
  constexpr int64_t kTile = kLines * kTileN * kLineDepth<T>;
  const int together = scratch.together;
  const bool alone = rows <= together;
  for (int64_t r = 0; r < rows; r += together) {
    const int height = pass_height(rows, r, together);
    const ActivationWord* a = packed_pass<kPer>(scratch, r, height, first * kLines);
    const T* ahead = alone ? b + kAheadBytes / static_cast<int64_t>(sizeof(T)) : next;
    with_height(height, [&]<int kRows>() {
      constexpr int kPanels = kPanelsTogether<kRows>;
      const int64_t chunk = alone && kPanels == 1 ? kStreamedTiles : count;
      int64_t t = 0;
      do {  // once even if there are no tiles, so that the results are zero
        const int64_t some = count - t < chunk ? count - t : chunk;
        for (int p = 0; p < 2; p += kPanels) {
          const ActivationWord* words = a + t * kLines * kPer * kRows;
          const T* tiles = b + (2 * t + p) * kTile;
          const T* fetched = ahead + (2 * t + p * some) * kTile;
          Sum* out = c + r * 32 + p * kTileN;
          if (alone || r == 0)
            multiply_pass<kRows, true>(words, tiles, some, fetched, out, accumulate || t > 0);
          else
            multiply_pass<kRows, false>(words, tiles, some, fetched, out, accumulate || t > 0);
        }
        t += chunk;
      } while (t < count);
    });
  }
}

}  // namespace
}  // namespace numaserve
