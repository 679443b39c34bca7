// Rows of a step as attention and stores read them.
#pragma once

#include <span>
#include <vector>

#include "kernels/runtime/attention/attention_plan.h"
#include "kernels/runtime/attention/kv_cache.h"
#include "kernels/runtime/program/slots.h"

namespace numaserve {

// The rows of a whole step, or those of logits alone, in each page table and for each kind of cache.
class Batch {
 public:
  // Has space for `max_step_tokens` rows of `max_slots` sequences. Blocks are merged in `groups` groups; see
  // BlockGroups.
  Batch(const Capacity& capacity, std::span<const CacheKind> kinds, int32_t groups, int threads);

  void clear();
  // Adds `count` rows of a slot, from `row` on, which begin at position `start`; `image_ends` as in AttentionSequence.
  void add(const Slot& slot, int32_t row, int32_t start, int32_t count, const int32_t* image_ends = nullptr);
  // Plans the attention of the sequences in `tables`.
  void plan();

  const AttentionWork& work(int kind) const { return attention[static_cast<size_t>(kind)]; }
  const std::vector<AttentionSequence>& sequences(const AttentionWork& work) const {
    return tables[work.table].sequences;
  }

  // The sequences that each rank attends for its own heads, and the runs of all rows, in one page table.
  struct Paged {
    std::vector<AttentionSequence> sequences;
    std::vector<PageRun> runs;
  };
  std::vector<Paged> tables;
  std::vector<AttentionWork> attention;  // of each kind of cache

 private:
  std::vector<AttentionPlanner> planners_;  // of each kind of cache
};

}  // namespace numaserve
