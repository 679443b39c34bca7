// One step's batch, in the form in which the nodes of a Program read it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/include/kernel_table.h"
#include "kernels/runtime/slots.h"

namespace numaserve {

struct Limits {
  int64_t max_tokens;      // new tokens in a step
  int64_t max_logit_rows;  // rows of logits in a step
  int64_t max_slots;
  int64_t pages_per_slot;
  int64_t num_pages;
  int64_t vocabulary;
};

// One sequence's part of a step; see SeqPlan in workers/protocol.py.
struct SequenceInput {
  int32_t slot, start, count;
  bool from_previous, sample;
  int32_t num_targets;  // of the first so many positions the log-probability of a given next token is wanted
};

struct LogitRow {
  int32_t row;       // in the batch
  int32_t sequence;  // index in the plan
  int32_t position;  // of the token to sample
  int32_t target;    // token whose log-probability is wanted, or -1
  bool sample;
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
  // Of all steps so far: positions of the KV cache that had to be read, and pairs of a new token and one it sees.
  int64_t positions = 0, pairs = 0;
};

// The heads of this rank.
struct HeadGeometry {
  int32_t q_heads, kv_heads, head_dim;
  // Of a latent cache: kv_heads is 1, or 0 without query heads, and the first so many dimensions of a key are its
  // value.
  int32_t value_dim = 0;
  bool latent() const { return value_dim > 0; }
  int32_t values() const { return latent() ? value_dim : head_dim; }
  int32_t head_tiles() const { return static_cast<int32_t>(ceil_div(head_dim, kTileK)); }
};

class Step {
 public:
  Step(const Limits& limits, const HeadGeometry& heads, int threads);

  // Registers a sliding window (0: none) that a node uses; returns its index in `attention`.
  int add_window(int32_t window);

  // Positions from `count` on cannot be computed: a node's tables end there.
  void limit_positions(int64_t count) { max_positions_ = std::min(max_positions_, count); }

  // Validates a plan and lays it out. `tokens` are those of all sequences that do not use their previous sample, in
  // order; `targets` the wanted next tokens of all sequences, in order. Throws std::invalid_argument before anything is
  // changed: the same plan is refused by every rank, so the ranks stay in step.
  void begin(std::span<const SequenceInput> plan, std::span<const int32_t> tokens, std::span<const int32_t> targets,
             SlotTable& slots);

  // Rows of partial attention results that there is room for.
  static int64_t partial_rows(int64_t pages_per_slot);

  int64_t num_tokens() const { return static_cast<int64_t>(tokens.size()); }

  std::vector<int32_t> tokens;
  std::vector<PageRun> runs;
  std::vector<AttentionSequence> sequences;
  std::vector<LogitRow> logit_rows;
  std::vector<AttentionWork> attention;
  std::vector<SequenceInput> plan;

  // Of all steps so far. What each node has read and computed follows from these: to count in the nodes takes time.
  struct Totals {
    int64_t steps = 0, tokens = 0;
    int64_t logit_steps = 0, logit_rows = 0;  // a step without rows of logits does not read the output head
  } totals;

 private:
  void check(std::span<const SequenceInput> plan, std::span<const int32_t> tokens, std::span<const int32_t> targets,
             SlotTable& slots);
  void add_rows(const SequenceInput& sequence, int32_t index, int32_t row, std::span<const int32_t>& targets);
  void add_runs(const SequenceInput& sequence, int32_t row, const Slot& slot);
  // How query rows are cut into work items: at most so many rows in one, and whether each block of KV is an item.
  struct Cut {
    int32_t rows;
    bool blocks;
  };
  Cut cut_heads(int32_t window) const;
  Cut cut_latent() const;
  void plan_attention(AttentionWork& work) const;
  void count_attention(AttentionWork& work) const;

  Limits limits_;
  HeadGeometry heads_;
  int threads_;
  int64_t max_positions_;
  std::vector<bool> named_;  // slots that the plan under check has named
};

}  // namespace numaserve
