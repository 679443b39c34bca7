// The memory of a GEMM's thread between its steps.
#pragma once

#include "kernels/include/types.h"

namespace numaserve {
namespace {

inline constexpr int64_t kMostTotals = 64 << 10;    // no slab has more groups times rows
inline constexpr int64_t kWidenedBytes = 16 << 10;  // a block of widened codes of two panels: half an L1 cache

// The type that a format's products are summed in.
template <class T>
struct SumOf {
  using type = float;
};
template <>
struct SumOf<int8_t> {
  using type = int32_t;
};
template <>
struct SumOf<uint8_t> {  // codes without a sign, by signed activations
  using type = int32_t;
};

struct GemmScratch {
  alignas(64) float c[kMostPanels / 2 * kRowBlock * 32];     // results of a block, fp32 or int32
  alignas(64) float part[kMostPanels / 2 * kRowBlock * 32];  // of a part of k after the first
  alignas(64) float sums[32 * 32];                           // of one group of k, fp32 or int32
  alignas(64) std::byte tiles[kWidenedBytes];
  // Totals of the activations of a slab of groups, [groups][rows]; see sum_groups.
  alignas(64) float totals[kMostTotals];
  int64_t first_group, total_rows;
};

}  // namespace
}  // namespace numaserve
