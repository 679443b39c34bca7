// How the attention of a step is cut into work items.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "kernels/include/kernel_table.h"

namespace numaserve {

// Room for so many of the longest sequences to be cut into items of a block each.
inline constexpr int64_t kPartialSequences = 8;

struct Limits {
  int64_t max_tokens;      // new tokens in a step
  int64_t max_logit_rows;  // rows of logits in a step
  int64_t max_slots;
  int64_t pages_per_slot;
  int64_t num_pages;
  int64_t vocabulary;
  int64_t extra_tokens = 0;  // ids behind the vocabulary that a plan may name: their embedding is zero
};

// The heads of this rank.
struct HeadGeometry {
  int32_t q_heads, kv_heads, head_dim;
  // The leading dimensions of a key that are its value in a latent cache, where kv_heads is 1, or 0 without query
  // heads; 0: the cache is not latent.
  int32_t value_dim = 0;
  bool latent() const { return value_dim > 0; }
  int32_t values() const { return latent() ? value_dim : head_dim; }
  int32_t head_tiles() const { return static_cast<int32_t>(ceil_div(head_dim, kTileK)); }
};

// Which blocks of KV are attended: of every `world` successive ones that of index `rank`, or, with rank -1, all. They
// are merged as `world` groups: each in its order, then one group after the other.
struct BlockGroups {
  int32_t world = 1, rank = -1;
  int32_t count(int32_t blocks) const { return rank < 0 ? blocks : (blocks - rank + world - 1) / world; }
  // Of the first `all` tokens of a sequence those in such blocks, of which the last may be filled in part.
  int64_t tokens(int64_t all) const {
    const auto blocks = static_cast<int32_t>(ceil_div(all, kAttentionBlock));
    const bool has_last = rank < 0 || (blocks - 1) % world == rank;
    return int64_t{count(blocks)} * kAttentionBlock - (has_last ? blocks * kAttentionBlock - all : 0);
  }
};

// The attention of one step under one sliding window: what to compute, heaviest first, and what to merge after.
struct AttentionWork {
  int32_t window;
  std::vector<AttentionItem> items;
  struct Merge {
    AttentionItem first;
    int32_t blocks;
    int64_t stride;
  };
  std::vector<Merge> merges;
  // Whether items may rotate their queries and store their new keys and values themselves: all rows of a KV head that
  // see a block are in one item, so that nobody else waits for what that has stored.
  bool can_store = false;
  // The pages of `s` that `item` reads first: those of its only block, or of its first one. `group`: query heads of a
  // KV head.
  Range first_pages(const AttentionSequence& s, const AttentionItem& item, int32_t group) const;

  // Counts of all steps: positions of the KV cache that had to be read, and pairs of a new token and one it sees.
  int64_t positions = 0, pairs = 0;
};

// Cuts the attention of sequences that see all blocks of `groups` with heads of `heads`.
class AttentionPlanner {
 public:
  AttentionPlanner(const Limits& limits, const HeadGeometry& heads, BlockGroups groups, int threads)
      : limits_(limits), heads_(heads), groups_(groups), threads_(threads) {}

  // Rows of partial attention results that there is room for.
  static int64_t partial_rows(int64_t pages_per_slot);

  // With room for what any step may need.
  AttentionWork make_work(int32_t window) const;

  // Plans the attention of `sequences`, and counts it.
  void plan(std::span<const AttentionSequence> sequences, AttentionWork& work) const;

 private:
  using Sequences = std::span<const AttentionSequence>;
  // How query rows are cut into work items: at most so many rows in one, and whether each block of KV is an item.
  struct Cut {
    int32_t rows;
    bool blocks;
  };
  Cut cut_heads(Sequences sequences, int32_t window) const;
  Cut cut_latent(Sequences sequences) const;
  void add_rows(AttentionItem item, Range blocks, bool cut, int64_t& partial, AttentionWork& work) const;
  void sort_items(Sequences sequences, AttentionWork& work) const;
  void count(Sequences sequences, AttentionWork& work) const;

  Limits limits_;
  HeadGeometry heads_;
  BlockGroups groups_;
  int threads_;
};

}  // namespace numaserve
