// The part of a product that low-rank adapters add (see adapter_args.h).
#pragma once

#include "kernels/include/types.h"

namespace numaserve {
namespace {

inline constexpr int64_t kBlocksAhead = 2;       // from a panel to the same half of the next pair
inline constexpr int64_t kExpandedColumns = 32;  // of a pair of panels, that `expand_pair` makes for a row

}  // namespace
}  // namespace numaserve

#if defined(NUMASERVE_TILES_HEADER)
#include "kernels/gemm/expand_amx.inl"
#else
#include "kernels/gemm/expand_vectors.inl"
#endif
