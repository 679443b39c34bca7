// A pass of some packed rows by weights in groups; see grouped_passes.inl.
#pragma once

#include "kernels/gemm/grouped/group_codes.inl"
#include "kernels/gemm/packed_rows.inl"

namespace numaserve {
namespace {

// A pass of some rows by the groups of a pair of panels.
struct GroupPass {
  const GemmArgs& g;
  const GroupLayout& layout;
  const GemmScratch& scratch;
  const std::byte* records;
  Range groups;
  int64_t row, first, rows;  // the block's first row, the pass's first row in it, and the remaining rows
  const ActivationWord* a;   // packed, from the first group on
  const std::byte* ahead;    // memory to prefetch during the pass

  // Rows added to fill the height count as the last row.
  int64_t row_of(int r) const { return first + (r < rows ? r : rows - 1); }
};

// Calls `work` with the kind of offsets of the matrix as a constant.
template <class Codes, class Work>
inline void with_offsets(Offsets offsets, Work&& work) {
  if constexpr (may_have_offsets(Codes::kFormat)) {
    if (offsets == Offsets::kZeros) return work.template operator()<Offsets::kZeros>();
    if (offsets == Offsets::kMinima) return work.template operator()<Offsets::kMinima>();
  }
  work.template operator()<Offsets::kNone>();
}

}  // namespace
}  // namespace numaserve
