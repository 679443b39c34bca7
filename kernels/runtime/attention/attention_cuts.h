// Cuts of attention items at blocks of KV, so that threads have equal work.
//
// Items are handed out heaviest first. A thread whose item is far above the mean of all threads would leave the others
// waiting. Such an item is cut into items of some of its blocks, whose partial results are merged afterwards. An item
// that a thread can take without exceeding the mean stays whole: it needs no memory for partial results, and no merge.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/include/attention_args.h"

namespace numaserve {

// An item of all its blocks before it is cut, or one of the items that it is cut into.
struct SizedItem {
  AttentionItem item;
  int64_t cost;           // in any unit
  int64_t alone;          // the cost for a thread that attends little else, so that nothing hides the time of reading
  int32_t first, blocks;  // the first block, and the number of blocks
  // The number of first blocks whose results are merged to one partial result; all blocks, if the item stays whole.
  int32_t joined = 0;
  bool is_whole() const { return joined == blocks; }
};

// A merge of `parts` partial results of the rows of `first`, their first item. The results of a row are `stride` rows
// apart.
struct PartialMerge {
  AttentionItem first;
  int32_t parts;
  int64_t stride;
};

// Cuts the items of a step for a number of threads.
class ItemCutter {
 public:
  // `partial_rows`: the number of rows of partial results that have memory. `block_step`: the distance of consecutive
  // blocks of an item. `joins`: whether an item may merge its rows' first blocks; blocks that are merged in groups must
  // not be.
  ItemCutter(int threads, int64_t partial_rows, int32_t block_step, bool joins)
      : threads_(threads), partial_rows_(partial_rows), block_step_(block_step), joins_(joins) {}

  // Returns the maximum number of items that `whole` items are cut into, whole ones included.
  int64_t most_items(int64_t whole) const;

  // Returns the mean cost of a thread.
  int64_t mean(std::span<const SizedItem> items) const;

  // Sorts `items`, heaviest first, and sets `joined` of each. Returns the cost of the busiest thread. `memory` is
  // overwritten.
  int64_t decide(std::vector<SizedItem>& items, std::vector<int64_t>& memory) const;

  // Cuts items as decided: replaces `items` by the items to compute, heaviest first, and adds the merges.
  void cut(std::vector<SizedItem>& items, std::vector<PartialMerge>& merges) const;

 private:
  int64_t share(std::span<const SizedItem> items) const;
  int64_t busiest(std::span<const SizedItem> items, std::vector<int64_t>& memory) const;
  void join_blocks(std::span<SizedItem> items) const;
  void keep_whole(std::span<SizedItem> items) const;

  int threads_;
  int64_t partial_rows_;
  int32_t block_step_;
  bool joins_;
};

}  // namespace numaserve
