// The number of rows of each pass of a product.
#pragma once

#include "kernels/include/types.h"

#if defined(__AVX512BF16__)
#include "kernels/gemm/tiles/sums_avx512.h"
#else
#include "kernels/gemm/tiles/sums_avx2.h"
#endif

namespace numaserve {
namespace {

// Returns the rows of each pass but the last: as even as the available heights allow.
inline int rows_together(int64_t rows, int64_t most) {
  const int64_t passes = ceil_div(rows, most), each = ceil_div(rows, passes);
  return static_cast<int>(each <= 2 ? each : round_up(each, kHeightStep));
}
// Returns the height of the pass that begins at row `first`.
inline int pass_height(int64_t rows, int64_t first, int together) {
  return rows - first >= together ? together : rows_together(rows - first, together);
}

// Calls `work` with the height of a pass, at most `kMost`, as a constant.
template <int kMost = kMostTogether, class Work>
inline void with_height(int height, Work&& work) {
  if constexpr (kMost > 2) {
    constexpr int kNext = kMost > 2 + kHeightStep ? kMost - kHeightStep : 2;
    if (height < kMost) return with_height<kNext>(height, work);
  } else if constexpr (kMost == 2) {
    if (height == 1) return work.template operator()<1>();
  }
  work.template operator()<kMost>();
}

}  // namespace
}  // namespace numaserve
