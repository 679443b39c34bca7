// The size limits that a Program is made for.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/include/types.h"

namespace numaserve {

// The fields of workers/interface/capacity.py, by the same names. A field that only one of the two has fails when a
// Program is made.
struct Capacity {
  int64_t num_pages = 0;
  int64_t context_length = 0;  // tokens of a sequence; page tables have whole pages
  int64_t max_slots = 0;
  int64_t max_step_tokens = 0;          // new tokens in a step
  int64_t max_logit_rows = 0;           // rows of logits in a step
  int64_t num_snapshots = 0;            // of the states of a slot
  int64_t max_drafts = 0;               // of a sequence in a step, where its layers keep states
  std::vector<int64_t> window_pages{};  // of each page table after the first
  int64_t feature_tiles = 0;            // tiles of images whose features are held

  void visit(auto&& field) {
    field("num_pages", num_pages), field("context_length", context_length), field("max_slots", max_slots);
    field("max_step_tokens", max_step_tokens), field("max_logit_rows", max_logit_rows);
    field("num_snapshots", num_snapshots), field("max_drafts", max_drafts), field("window_pages", window_pages);
    field("feature_tiles", feature_tiles);
  }

  int64_t pages_per_slot() const { return ceil_div(context_length, kPageTokens); }
  // Returns the pages of each page table.
  std::vector<int64_t> table_pages() const {
    std::vector<int64_t> pages{num_pages};
    pages.insert(pages.end(), window_pages.begin(), window_pages.end());
    return pages;
  }
};

// The limits of a step: the capacity, and the token ids that there are.
struct Limits : Capacity {
  int64_t vocabulary = 0;
  int64_t extra_tokens = 0;  // ids after the vocabulary that a plan may contain: their embedding is zero
};

}  // namespace numaserve
