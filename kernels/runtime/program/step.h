// One step's batch, in the form in which the nodes of a Program read it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/include/kernel_table.h"
#include "kernels/runtime/program/batch.h"

namespace numaserve {

// The maximum number of draft tokens of a masked sequence in a step. Each waits for a mask of its own.
inline constexpr int32_t kMaxMaskedDrafts = 8;

// The states of a sequence after `position` tokens are stored in a snapshot.
struct StateMark {
  int32_t position, snapshot;
};

// One sequence's part of a step; see SeqPlan and StateWork in workers/interface/protocol/steps.py.
struct SequenceInput {
  int32_t slot, start, count;
  bool from_previous, sample;
  int32_t num_targets;  // number of first positions at which the log-probability of a given next token is wanted
  bool pool = false;    // whether it is pooled, into one row; such a sequence has no rows of logits
  bool tokens = false;  // whether vectors of its tokens are wanted too; only of a pooled sequence
  // The number of last tokens that are draft tokens. Each gets a row of logits. The token sampled there is kept only if
  // all draft tokens up to this one are accepted.
  int32_t drafts = 0;
  int32_t begin = -1;                  // the snapshot that the states begin with; -1: none
  std::span<const StateMark> marks{};  // of memory that lives as long as the step
};

// Positions of a sequence that take rows of the feature pool in place of their embeddings, from `row` on; see
// PlacedRows in workers/interface/protocol/steps.py.
struct PlacedRows {
  int32_t sequence;  // index in the plan
  int32_t start, count, row;
};

struct LogitRow {
  int32_t row;       // in the batch
  int32_t sequence;  // index in the plan
  int32_t position;  // of the token to sample
  int32_t target;    // token whose log-probability is wanted, or -1
  bool sample;
  int32_t draft;   // the draft token for this position, on which the next row depends; or -1
  int32_t behind;  // draft tokens of the sequence in the step that come before this row
  Range named;     // where the log-probabilities of its sequence's named tokens lie among those of all rows
};

// The division of a long sequence's latents among ranks: each rank attends its blocks with the heads of all ranks.
// Latents are the same for all heads, so if only heads were divided, every rank would read all latents.
struct ContextParallel {
  std::vector<int32_t> head_bounds;  // world + 1 boundaries of the ranks' heads
  int32_t world = 1, rank = 0;       // a world of 1: latents are not divided
  int64_t from = 0;                  // tokens of a sequence, per new token, from which on latents are divided
  int64_t max_rows = 0;              // new tokens of a step that fit the memory
  HeadGeometry all_heads(HeadGeometry heads) const {
    if (world > 1) heads.q_heads = head_bounds.back();
    return heads;
  }
};

class Step {
 public:
  // Latents of the first of `kinds` are divided where `parallel` says so. Each page table is used by one of `kinds`,
  // but for the first.
  Step(const Limits& limits, std::span<const CacheKind> kinds, const ContextParallel& parallel, int threads);

  // Limits positions to those below `count`: a node's tables end there.
  void limit_positions(int64_t count) { max_positions_ = std::min(max_positions_, count); }

  // Lets a sequence go on only from where its states are.
  void keep_states() { keeps_states_ = true; }

  // Lets nodes after some layer work on the rows of logits alone.
  void allow_narrowing(std::span<const CacheKind> kinds, int threads);

  // Allows pooled sequences: a node exists for them.
  void allow_pooling() { may_pool_ = true; }

  // Allows vectors of tokens: nodes exist for them.
  void allow_token_vectors() { may_give_tokens_ = true; }

  // Allows rows of a feature pool of `rows` rows in place of embeddings.
  void allow_placing(int64_t rows) {
    pool_rows_ = rows;
    feature_rows.reserve(static_cast<size_t>(limits_.max_step_tokens));
  }

  // Allows sequences with an adapter, whose number is at most `places`: nodes exist for them.
  void allow_adapters(int64_t places);

  // Requires each sequence to be a tile of `patches` tokens, or with `many` any number of tiles. `merged` tokens become
  // one row. With `extra` tokens after its tile, which become no row, a step has one sequence. Throws
  // std::invalid_argument for tiles that no step has space for.
  void take_tiles(int64_t patches, int64_t merged, int64_t extra, bool many);

  // Validates a plan and lays it out. `tokens` are the tokens of all sequences that do not use their previous sample,
  // in order. `targets` are the wanted next tokens of all sequences, in order. Throws std::invalid_argument before
  // anything is changed: every rank refuses the same plan, so the ranks stay in step.
  void begin(std::span<const SequenceInput> plan, std::span<const int32_t> tokens, std::span<const int32_t> targets,
             SlotTable& slots, std::span<const PlacedRows> placed = {});

  std::span<const int32_t> tokens() const { return indices.tokens(); }
  int64_t num_tokens() const { return static_cast<int64_t>(tokens().size()); }
  // The rows of a node; `narrow` as in Node.
  int64_t num_rows(bool narrow) const {
    if (!narrow) return num_tokens();
    return static_cast<int64_t>(logit_rows.size() + pooled_rows.size()) + merged_rows();
  }
  // The number of each row's adapter, or 0; `narrow` as in Node. Empty in a step without sequences that have one.
  std::span<const int32_t> adapters(bool narrow) const { return narrow ? narrow_adapters_ : adapters_; }
  // Rows that tiles become.
  int64_t merged_rows() const { return merged_ > 0 ? num_tokens() / merged_ : 0; }
  const Batch& batch(bool narrow) const { return narrow ? *narrowed_ : whole_; }
  int64_t max_rows(bool narrow) const {
    if (!narrow) return limits_.max_step_tokens;
    const int64_t merged = merged_ > 0 ? limits_.max_step_tokens / merged_ : 0;
    return limits_.max_logit_rows + (may_pool_ ? limits_.max_slots : 0) + merged;
  }

  // Whether totals and times count this step. Empty steps, by which workers show that they are alive, would make the
  // other steps look cheaper.
  bool counts() const { return !tokens().empty(); }

  int64_t num_named = 0;  // log-probabilities of named tokens, of all rows of logits
  RowIndices indices;     // of all tokens
  std::vector<LogitRow> logit_rows;
  std::vector<PooledRows> pooled_rows;    // in the batch
  std::vector<int32_t> pooled_sequences;  // index in the plan
  std::vector<SequenceInput> plan;
  // The row of the feature pool that each new token takes in place of its embedding, or -1. Empty in a step without.
  std::vector<int32_t> feature_rows;
  // The segments of all sequences, and the range of those of each. Segments of a sequence must run in order.
  std::vector<StateSegment> segments;
  std::vector<Range> chains;
  bool wants_tokens = false;  // whether vectors of the tokens of some sequence are wanted
  bool has_drafts = false;    // whether some segment is of draft tokens
  // Sequences whose latents the ranks divide. `row` of a sequence counts the new tokens of these sequences, and `rows`
  // has their rows in the batch.
  struct Divided {
    std::vector<AttentionSequence> sequences;
    std::vector<int32_t> rows;
    AttentionWork work;
  } divided;

  // Totals over all counted steps. What each node has read and computed follows from them: counting in the nodes would
  // take time.
  struct Totals {
    int64_t steps = 0, tokens = 0, sequences = 0;
    int64_t logit_rows = 0;
    int64_t last_steps = 0;  // with rows of logits or pooled ones: others do not read the head
    int64_t pooled = 0;      // sequences
    int64_t merged = 0;      // rows that tiles became
    int64_t divided = 0;     // tokens of sequences whose latents the ranks divide
  } totals;

 private:
  void check(std::span<const SequenceInput> plan, std::span<const int32_t> tokens, std::span<const int32_t> targets,
             SlotTable& slots);
  void check_states(std::span<const SequenceInput> plan, SlotTable& slots);
  void check_marks(const SequenceInput& sequence);
  void check_whole(const SequenceInput& sequence) const;
  void check_images(const SequenceInput& sequence, const Slot& slot) const;
  const int32_t* list_image_ends(const SequenceInput& sequence, const Slot& slot, int32_t row);
  void check_adapter(const SequenceInput& sequence, const Slot& slot) const;
  void list_adapters(SlotTable& slots);
  void place_features(std::span<const SequenceInput> plan, std::span<const PlacedRows> placed);
  void check_pages(const SequenceInput& sequence, const Slot& slot) const;
  void add_segments(const SequenceInput& sequence, int32_t row, Slot& slot);
  void add_rows(const SequenceInput& sequence, const Slot& slot, int32_t index, int32_t row,
                std::span<const int32_t>& targets);
  void add_narrowed(const Slot& slot, size_t first_row, const int32_t* image_ends);
  void divide_last();

  Limits limits_;
  ContextParallel parallel_;
  std::vector<Window> windows_;  // of each page table
  Batch whole_;
  std::optional<Batch> narrowed_;  // where the last nodes work on the rows of logits alone
  std::optional<AttentionPlanner> divided_planner_;
  int64_t max_positions_;
  bool may_pool_ = false, may_give_tokens_ = false, keeps_states_ = false;
  int64_t pool_rows_ = 0, tile_ = 0, merged_ = 0;
  bool many_tiles_ = false, lone_tile_ = false;
  int64_t adapter_places_ = 0;
  std::vector<int32_t> adapters_, narrow_adapters_;
  bool takes_whole_ = false;  // whether attention is bidirectional, so that a sequence must be whole
  // Whether tokens of an image see each other in some layers, so that an image must be whole; and for each row the end
  // of its image, see AttentionSequence.
  bool whole_images_ = false;
  std::vector<int32_t> image_ends_;
  std::vector<bool> named_;   // slots that the plan being checked contains
  std::vector<bool> stored_;  // snapshots that it stores
};

}  // namespace numaserve
