// A pass of some rows by weights in groups, on packed rows; see grouped_passes.inl.
#pragma once

#include "kernels/gemm/group_codes.inl"
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
  int64_t row, first, rows;  // the block's first row, the pass's first row in it, and the rows that are left
  const ActivationWord* a;   // packed, from the first group on
  const std::byte* ahead;    // what is fetched while this is multiplied

  // Rows that fill up the height count as the last one.
  int64_t row_of(int r) const { return first + (r < rows ? r : rows - 1); }
};

// Calls `work` with the matrix's kind of offsets as a constant.
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
