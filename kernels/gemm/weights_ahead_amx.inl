// The weights that are prefetched during products of many rows with tile registers.
#pragma once

#include "kernels/gemm/lines_ahead_amx.inl"
#include "kernels/gemm/scratch.inl"
#include "kernels/include/dense_args.h"

namespace numaserve {
namespace {

// Returns the weights that the thread reads after all of k of a pair of panels and a row block.
template <class T>
inline const std::byte* weights_after(const GemmArgs& g, const GemmShare& share, int64_t row, int64_t rows,
                                      int64_t panel) {
  if (panel + 2 == share.panels.end) {
    if (row + rows < share.rows.end)
      panel = share.panels.begin - 2;
    else if (share.next != nullptr)
      return share.next;
  }
  return g.b.data + (panel / 2 + 1) * (g.b.depth / kTileDepth<T>)*2 * kTileBytes;
}

// The weights of a pair of panels from some k tiles on, and then the first k tiles of the weights after them.
class WeightsAhead {
 public:
  // `pair` and `after` begin with the first k tile of a slab of `tiles`; rows pass by blocks of `depth` of them. The
  // prefetches are `kLead` tiles ahead: pages are complete before the block that reads them.
  WeightsAhead(const std::byte* pair, const std::byte* after, int64_t tiles, int64_t depth)
      : own_(pair + lead(tiles) * kPairBytes, (tiles - lead(tiles)) * kPairBytes, pages(depth)),
        after_(after, lead(tiles) * kPairBytes, pages(depth)) {}

  void fetch(int64_t lines) {
    const int64_t left = own_.fetch(lines);
    if (left > 0) after_.fetch(left);
  }

 private:
  static constexpr int64_t kLead = 16, kPairBytes = 2 * kTileBytes;
  static int64_t lead(int64_t tiles) { return tiles < kLead ? tiles : kLead; }
  static int64_t pages(int64_t depth) {
    const int64_t whole = (kLead - depth) * kPairBytes / static_cast<int64_t>(LinesAhead::kPageBytes);
    return whole < 1 ? 1 : whole < LinesAhead::kMostPages ? whole : LinesAhead::kMostPages;
  }
  LinesAhead own_, after_;
};

}  // namespace
}  // namespace numaserve
