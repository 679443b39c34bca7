// The products of rows with the A matrices of their adapters (see adapter_args.h), tile by tile of rows and sums. The
// bits of a row do not depend on the tile that it is in.
#pragma once

#include "kernels/include/kernel_table.h"
#include "kernels/include/shares.h"

#if defined(NUMASERVE_TILES_HEADER)
#include "kernels/ops/shrink_amx.inl"
#else
#include "kernels/ops/shrink_vectors.inl"
#endif

namespace numaserve {
namespace {

inline void shrink(const ShrinkArgs& s, int thread, int threads) {
  for_shrink_tiles(s, kShrinkTile, thread, threads, [&](int64_t row, int64_t rows, int64_t part, int64_t first) {
    shrink_tile(s, row, rows, part, first);
  });
}

}  // namespace
}  // namespace numaserve
