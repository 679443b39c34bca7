// The division of a step's attention into work items.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "kernels/include/kernel_table.h"
#include "kernels/runtime/attention/attention_cuts.h"
#include "kernels/runtime/capacity.h"

namespace numaserve {

// Attention reads whole blocks of pages.
inline constexpr int64_t kBlockPages = kAttentionBlock / kPageTokens;

// The number of longest sequences for whose partial results there is memory when each block has one for each row.
inline constexpr int64_t kPartialSequences = 8;

// The heads of this rank.
struct HeadGeometry {
  int32_t q_heads, kv_heads, head_dim;
  int32_t value_dim = 0;  // of a value; 0: as many as of a key
  // Whether the first dimensions of a key are its value; kv_heads is then 1, or 0 for a rank without query heads.
  bool latent = false;
  int32_t lower = 0, higher = 0;  // see HeadGroups
  HeadGroups groups() const { return {.q_heads = q_heads, .kv_heads = kv_heads, .lower = lower, .higher = higher}; }
  int32_t values() const { return value_dim > 0 ? value_dim : head_dim; }
  int32_t head_tiles() const { return static_cast<int32_t>(ceil_div(head_dim, kTileK)); }
  int32_t value_tiles() const { return static_cast<int32_t>(ceil_div(values(), kTileK)); }
  // Returns the bytes of a page of one KV head.
  int64_t page_bytes(KvDtype dtype) const {
    return kv_half_bytes(dtype, head_tiles()) + (latent ? 0 : kv_half_bytes(dtype, value_tiles()));
  }
};

// The blocks of KV that are attended: block `rank` of every `world` consecutive blocks, or all blocks if rank is -1.
// Blocks are merged as `world` groups, each in order, then the groups in order.
struct BlockGroups {
  int32_t world = 1, rank = -1;
  int32_t count(int32_t blocks) const { return rank < 0 ? blocks : (blocks - rank + world - 1) / world; }
  // Returns the number of the first `all` tokens of a sequence that lie in these blocks. The last block may be partial.
  int64_t tokens(int64_t all) const {
    const auto blocks = static_cast<int32_t>(ceil_div(all, kAttentionBlock));
    const bool has_last = rank < 0 || (blocks - 1) % world == rank;
    return int64_t{count(blocks)} * kAttentionBlock - (has_last ? blocks * kAttentionBlock - all : 0);
  }
};

// The attention of one step with one window: the items, heaviest first, and the merges that follow them.
struct AttentionWork {
  Window window;
  size_t table = 0;  // the page table of each sequence that is read; see SlotTable
  std::vector<AttentionItem> items;
  std::vector<PartialMerge> merges;
  // Whether items may rotate their queries and store their new keys and values themselves. This needs all rows of a KV
  // head that see a block to be in one item, so that no other item reads what this item stores.
  bool can_store = false;
  // Returns the pages of `s` that `item` reads first, in its first block. `group`: query heads of its KV head.
  Range first_pages(const AttentionSequence& s, const AttentionItem& item, int32_t group) const;

  // Totals over all steps: positions of the KV cache read, and pairs of a new token and a token that it sees.
  int64_t positions = 0, pairs = 0;

  // Memory for planning.
  std::vector<SizedItem> sized;
  std::vector<int64_t> loads;
};

// Plans the attention of sequences with heads of `heads` over the blocks of `groups`.
class AttentionPlanner {
 public:
  AttentionPlanner(const Capacity& capacity, const HeadGeometry& heads, BlockGroups groups, int threads)
      : capacity_(capacity),
        heads_(heads),
        groups_(groups),
        threads_(threads),
        cutter_(threads, partial_rows(capacity.pages_per_slot()), groups.rank < 0 ? 1 : groups.world,
                groups.rank >= 0 || groups.world == 1) {}

  // The number of rows of partial attention results that have memory.
  static int64_t partial_rows(int64_t pages_per_slot);

  // Returns work with memory reserved for any step.
  AttentionWork make_work(Window window) const;

  // Plans the attention of `sequences`, and adds it to the totals.
  void plan(std::span<const AttentionSequence> sequences, AttentionWork& work) const;

 private:
  using Sequences = std::span<const AttentionSequence>;
  void plan_heads(Sequences sequences, AttentionWork& work) const;
  void plan_latents(Sequences sequences, AttentionWork& work) const;
  int32_t group(const AttentionItem& item) const { return heads_.groups().count(item.kv_head); }
  int64_t mean_item(const AttentionSequence& s, int32_t kv_head, int32_t rows, Window window) const;
  Range visible_blocks(const AttentionSequence& s, const AttentionItem& item, Window window) const;
  int64_t visible_tokens(const AttentionSequence& s, const AttentionItem& item, Window window) const;
  int64_t token_cost(const AttentionItem& item) const;
  void add_sequence(Sequences sequences, size_t index, int32_t rows_per_item, bool reads, AttentionWork& work) const;
  void count(Sequences sequences, AttentionWork& work) const;

  Capacity capacity_;
  HeadGeometry heads_;
  BlockGroups groups_;
  int threads_;
  ItemCutter cutter_;
};

}  // namespace numaserve
